package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"ration/check/alerts"
	"ration/check/expect"
	"ration/internal/usage"
	"ration/machine"
)

// growing are accounts that grow with each scrape.
type growing struct{ scrapes *atomic.Int64 }

func (g growing) JobTotals([]usage.Subject) (map[usage.Subject]usage.Sums, error) { return nil, nil }

func (g growing) UserTotals() (map[usage.Subject]usage.Sums, error) {
	n := uint64(g.scrapes.Add(1))
	return map[usage.Subject]usage.Sums{{UID: 1000, Owner: "lovelace"}: {Held: 400 * gib * n, Idle: 100 * gib * n, Measured: 1e9 * n}}, nil
}

// startPrometheus starts a real Prometheus with a configuration, and returns its address.
func startPrometheus(t *testing.T, config string) string {
	t.Helper()
	program, folder := alerts.Tool(t, "prometheus"), t.TempDir()
	path := filepath.Join(folder, "prometheus.yml")
	expect.OK(t, os.WriteFile(path, []byte(config), 0o644))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.OK(t, err)
	address := l.Addr().String()
	expect.OK(t, l.Close())
	cmd := exec.Command(program, "--config.file="+path, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address, "--log.level=error")
	cmd.Stderr = os.Stderr
	expect.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return address
}

// query returns the values of an expression.
func query(address, expression string) (values []float64, err error) {
	answer, err := http.Get("http://" + address + "/api/v1/query?" + url.Values{"query": {expression}}.Encode())
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	var got struct {
		Error string
		Data  struct {
			Result []struct{ Value []any }
		}
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Error != "" {
		return nil, fmt.Errorf("%s: %w %s", expression, err, got.Error)
	}
	for _, r := range got.Data.Result {
		v, err := strconv.ParseFloat(r.Value[1].(string), 64)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// A real Prometheus scrapes three machines as agents export them. The recording rules have the sums, and each panel of the
// fleet's dashboard has data.
func TestFleetDashboard(t *testing.T) {
	rules, err := filepath.Abs("../../deploy/prometheus/ration-fleet.rules.yaml")
	expect.OK(t, err)
	var targets []string
	for range 3 {
		s := httptest.NewServer(Handler(time.Minute, MachineCollector(func() *machine.Machine { return example() }, Options{Version: "1", Jobs: true, Accounts: growing{&atomic.Int64{}}})))
		t.Cleanup(s.Close)
		targets = append(targets, strconv.Quote(s.Listener.Addr().String()))
	}
	address := startPrometheus(t, fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs: [{job_name: ration, static_configs: [{targets: [%s]}]}]\n", rules, strings.Join(targets, ", ")))
	await := func(expression string, right func(values []float64) bool) {
		t.Helper()
		var values []float64
		var err error
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if values, err = query(address, expression); err == nil && right(values) {
				return
			}
		}
		expect.True(t, false, expression, values, err)
	}
	is := func(want float64) func([]float64) bool {
		return func(values []float64) bool { return len(values) == 1 && values[0] == want }
	}
	for expression, want := range map[string]float64{"fleet:ration_machines:count": 3, "fleet:ration_machines_up:sum": 3, "fleet:ration_devices:count": 6, "fleet:ration_memory_size_bytes:sum": 3 * 282 * gib,
		"fleet:ration_memory_used_bytes:sum": 3 * 90 * gib, `kind:ration_findings:sum{kind="outside"}`: 6, "sum(instance:ration_memory_rationed_bytes:sum)": 3 * 150 * gib, "count(instance:ration_findings:sum)": 3,
		`user:ration_memory_idle_byte_seconds:rate5m{user="lovelace"} / user:ration_memory_byte_seconds:rate5m`: 0.25} {
		await(expression, is(want))
	}
	var dashboard struct {
		UID    string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query any } }
	}
	text, err := os.ReadFile("../../deploy/grafana/ration-fleet.json")
	expect.OK(t, err)
	expect.OK(t, json.Unmarshal(text, &dashboard))
	expect.True(t, dashboard.UID == "ration-fleet" && len(dashboard.Panels) >= 8, dashboard)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			await(strings.ReplaceAll(target.Expr, "$user", ".*"), func(values []float64) bool { return len(values) > 0 })
		}
	}
	wantAllRecorded(t, rules, string(text))
}

// wantAllRecorded checks that the dashboard uses each recorded series, and no other series.
func wantAllRecorded(t *testing.T, rules, dashboard string) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	text, err := os.ReadFile(rules)
	expect.OK(t, err)
	expect.OK(t, yaml.Unmarshal(text, &file))
	recorded := map[string]bool{}
	for _, r := range file.Groups[0].Rules {
		recorded[r.Record] = true
		if !strings.Contains(r.Expr, "(up{") {
			used(t, r.Record, r.Expr)
		}
		expect.True(t, strings.Contains(dashboard, r.Record), "no panel shows", r.Record)
	}
	for _, name := range regexp.MustCompile(`[a-z]+:ration_[a-z0-9_]+:[a-z0-9]+`).FindAllString(dashboard, -1) {
		expect.True(t, recorded[name], "no rule records", name)
	}
}
