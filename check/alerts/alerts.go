// Package alerts tests rules of Prometheus, by its own tool: each alert fires when what it is about happens.
package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ration/check/expect"
	"ration/check/testenv"
)

// When the trouble of a case begins, and when it has to have been noticed. promtool's clock starts at 0.
const (
	TroubleAt = 15 * time.Minute
	EndAt     = 35 * time.Minute
)

// Case is what makes an alert fire.
type Case struct {
	Alert         string
	Before, After map[string]float64 // what Prometheus scrapes before and in the trouble, by series
	Values        map[string]string  // of series that change meanwhile, as promtool writes them
}

// Scrape returns what Prometheus gets from a program at an address, for the job of its configuration.
func Scrape(t *testing.T, from prometheus.Gatherer, instance, job string) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	expect.OK(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := []string{fmt.Sprintf("instance=%q", instance), fmt.Sprintf("job=%q", job)}
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			value := m.Gauge.GetValue()
			if m.Counter != nil {
				value = m.Counter.GetValue()
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return out
}

// Tool returns the path of a program of Prometheus.
func Tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = filepath.Abs("../../build/" + name)
		expect.OK(t, err)
		_, err = os.Stat(path)
	}
	testenv.Made(t, err)
	return path
}

// Fire checks that each alert of a file has a case and fires in it, and that none fires before the trouble.
func Fire(t *testing.T, rules string, cases []Case) {
	t.Helper()
	rules, err := filepath.Abs(rules)
	expect.OK(t, err)
	text, err := os.ReadFile(rules)
	expect.OK(t, err)
	names := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(text, -1)
	expect.Must(t, len(names) > 0, rules, "has no alerts")
	for _, name := range names {
		expect.True(t, slices.ContainsFunc(cases, func(c Case) bool { return c.Alert == string(name[1]) }), string(name[1]), "has no case")
	}
	promtool := Tool(t, "promtool")
	type promql struct {
		Expr    string           `json:"expr"`
		At      string           `json:"eval_time"`
		Samples []map[string]any `json:"exp_samples"`
	}
	type group struct {
		Name     string              `json:"name"`
		Interval string              `json:"interval"`
		Series   []map[string]string `json:"input_series"`
		Tests    []promql            `json:"promql_expr_test"`
	}
	file := struct {
		Rules  []string `json:"rule_files"`
		Every  string   `json:"evaluation_interval"`
		Groups []group  `json:"tests"`
	}{Rules: []string{rules}, Every: "1m"}
	before, after := int(TroubleAt/time.Minute), int((EndAt-TroubleAt)/time.Minute)
	for _, c := range cases {
		g := group{Name: c.Alert, Interval: "1m"}
		for series := range union(c.Before, c.After) {
			name, _, _ := strings.Cut(series, "{")
			if !strings.Contains(string(text), name) {
				continue
			}
			values, is := c.Values[series]
			if !is {
				values = Span(c.Before, series, before-1) + " " + Span(c.After, series, after)
			}
			g.Series = append(g.Series, map[string]string{"series": series, "values": values})
		}
		fired := fmt.Sprintf(`count(count_over_time(ALERTS{alertname=%q,alertstate="firing"}[%dm])) > bool 0`, c.Alert, after)
		g.Tests = []promql{
			{`count by (alertname) (count_over_time(ALERTS[1h]))`, fmt.Sprintf("%dm", before-1), []map[string]any{}},
			{fired, fmt.Sprintf("%dm", before+after), []map[string]any{{"labels": "{}", "value": 1}}},
		}
		file.Groups = append(file.Groups, g)
	}
	text, err = json.Marshal(file) // which is YAML, too
	expect.OK(t, err)
	path := filepath.Join(t.TempDir(), "test.yaml")
	expect.OK(t, os.WriteFile(path, text, 0o644))
	out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput()
	expect.True(t, err == nil, string(out[:min(len(out), 4000)]), err)
}

func union(all ...map[string]float64) map[string]bool {
	out := map[string]bool{}
	for _, m := range all {
		for k := range m {
			out[k] = true
		}
	}
	return out
}

// Span returns n+1 equal samples of a series, or n+1 missing ones, as promtool writes them.
func Span(of map[string]float64, series string, n int) string {
	if v, is := of[series]; is {
		return fmt.Sprintf("%.0f+0x%d", v, n)
	}
	return strings.Repeat("_ ", n) + "_"
}
