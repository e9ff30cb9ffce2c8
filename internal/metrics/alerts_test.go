package metrics

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/usage"
	"ration/machine"
)

// scene is what an agent exports at one time.
type scene struct {
	machine *machine.Machine
	agent   Agent
	totals  totals
	down    bool // Prometheus cannot reach it
}

// quiet returns a machine on which all is well.
func quiet() scene {
	up := true
	return scene{totals: totals{users: map[usage.Subject]usage.Sums{{UID: 1000, Owner: "lovelace"}: {Held: 100 * gib, Idle: 100 * gib}}}, agent: Agent{Events: map[string]uint64{}, PolicyUp: &up}, machine: &machine.Machine{
		Devices: []machine.GPU{{Device: 0, UUID: "GPU-a", Total: 100 * gib, Used: 10 * gib, Rations: 40 * gib, Jobs: 1}},
		Jobs: []machine.Job{{Name: "train", Owner: "lovelace", State: machine.Running, Created: time.Unix(0, 0), Path: "/a",
			Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: 40 * gib, Used: 10 * gib, Peak: 10 * gib}}}},
	}}
}

type alertCase struct {
	name    string
	trouble func(s *scene)
}

// alerts has what makes each alert fire.
var alerts = []alertCase{
	{"RationDeviceOverbooked", func(s *scene) { s.machine.Devices[0].Rations = 101 * gib }},
	{"RationMemoryOutsideJobs", func(s *scene) { s.machine.Outside = []machine.Outside{{Device: 0, PID: 7, Used: gib}} }},
	{"RationMemoryOutsideJobs", func(s *scene) { s.found(machine.OutsideJobs) }},
	{"RationOverLimit", func(s *scene) { s.device().Driver = 50 * gib }},
	{"RationDrift", func(s *scene) { s.found(machine.Drift) }},
	{"RationJobUnreadable", func(s *scene) { s.found(machine.Unreadable) }},
	{"RationUserNotAnswering", func(s *scene) { s.found(machine.Unanswering) }},
	{"RationDriverSilent", func(s *scene) { s.found(machine.DriverSilent) }},
	{"RationUsersRefused", func(s *scene) { s.found(machine.PolicyRefused) }},
	{"RationShareNotEnforced", func(s *scene) { s.found(machine.ShareUnkept) }},
	{"RationJobRefused", func(s *scene) { s.device().Refused = 3 }},
	{"RationJobRefused", func(s *scene) { s.young().Devices[0].Refused = 1 }},
	{"RationJobNearLimit", func(s *scene) { s.device().Used = 39 * gib }},
	{"RationJobIdle", func(s *scene) {
		s.machine.Jobs[0].State, s.machine.Jobs[0].IdleSince = machine.Idle, time.Unix(-7200, 0)
	}},
	{"RationJobCannotWake", func(s *scene) {
		s.machine.Jobs[0].Sleep = machine.Asleep
		s.machine.Waiting = []machine.Waiting{{Path: "/a", Wakes: true, Since: time.Unix(0, int64(troubleAt))}}
	}},
	{"RationUserIdle", func(s *scene) {
		s.totals.users = map[usage.Subject]usage.Sums{{UID: 1000, Owner: "lovelace"}: {Held: 1500 * gib * 3600, Idle: 1400 * gib * 3600}}
	}},
	{"RationProcessDied", func(s *scene) { s.machine.Jobs[0].Died = 2 }},
	{"RationProcessDied", func(s *scene) { s.young().Died = 1 }},
	{"RationJobsWithoutSeries", func(s *scene) {
		for i := range MaxJobs {
			s.machine.Jobs = append(s.machine.Jobs, machine.Job{Name: fmt.Sprint("small-", i), Owner: "eve", State: machine.Idle, Path: fmt.Sprint(i)})
		}
	}},
	{"RationAgentSlow", func(s *scene) { s.agent.ScanSeconds = 3 }},
	{"RationAgentStalled", func(s *scene) { s.agent.Scanned = int64(troubleAt) }},
	{"RationAgentDown", func(s *scene) { s.down = true }},
	{"RationPolicyServiceDown", func(s *scene) { up := false; s.agent.PolicyUp = &up }},
}

func (s *scene) found(kind string) {
	s.machine.Findings = append(s.machine.Findings, machine.Finding{Kind: kind})
}

func (s *scene) device() *machine.Device { return &s.machine.Jobs[0].Devices[0] }

// young adds a job that Prometheus has not seen before the trouble.
func (s *scene) young() *machine.Job {
	s.machine.Jobs = append(s.machine.Jobs, machine.Job{Name: "young", Owner: "eve", State: machine.Running, Created: time.Unix(0, int64(troubleAt)), Path: "/b",
		Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: gib}}})
	return &s.machine.Jobs[len(s.machine.Jobs)-1]
}

const (
	troubleAt = 15 * time.Minute // promtool's clock starts at 0
	endAt     = 35 * time.Minute
)

// samples returns what Prometheus scrapes, by series. As shipped, the agent exports its jobs.
func (s scene) samples(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{`up{instance="m:9410",job="ration"}`: 1}
	if s.down {
		return map[string]float64{`up{instance="m:9410",job="ration"}`: 0}
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(Collector(func() *machine.Machine { return s.machine }, Options{Version: "1", Jobs: true, Accounts: s.totals}), AgentCollector(func() Agent { return s.agent }))
	families, err := r.Gather()
	expect.OK(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			labels := []string{`instance="m:9410"`, `job="ration"`}
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = valueOf(m)
		}
	}
	return out
}

func valueOf(m *dto.Metric) float64 {
	if m.Counter != nil {
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}

// tool returns the path of a program of Prometheus.
func tool(t *testing.T, name string) string {
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

// Every alert fires when what it is about happens, by what an agent exports as it is shipped, and none fires on a
// machine on which all is well. Prometheus' own tool evaluates the rules.
func TestAlertsFire(t *testing.T) {
	promtool := tool(t, "promtool")
	type promql struct {
		Expr    string           `yaml:"expr"`
		At      string           `yaml:"eval_time"`
		Samples []map[string]any `yaml:"exp_samples"`
	}
	type group struct {
		Name     string              `yaml:"name"`
		Interval string              `yaml:"interval"`
		Series   []map[string]string `yaml:"input_series"`
		Tests    []promql            `yaml:"promql_expr_test"`
	}
	rules, err := filepath.Abs("../../deploy/prometheus/ration.rules.yaml")
	expect.OK(t, err)
	text, err := os.ReadFile(rules)
	expect.OK(t, err)
	file := struct {
		Rules  []string `yaml:"rule_files"`
		Every  string   `yaml:"evaluation_interval"`
		Groups []group  `yaml:"tests"`
	}{Rules: []string{rules}, Every: "1m"}
	before, after := int(troubleAt/time.Minute), int((endAt-troubleAt)/time.Minute)
	for _, a := range alerts {
		s, bad := quiet(), quiet()
		a.trouble(&bad)
		first, then := s.samples(t), bad.samples(t)
		g := group{Name: a.name, Interval: "1m"}
		for series := range merge(first, then) {
			name, _, _ := strings.Cut(series, "{")
			values := span(first, series, before-1) + " " + span(then, series, after)
			switch {
			case !strings.Contains(string(text), name):
				continue
			case name != "ration_agent_look_time_seconds":
			case bad.agent.Scanned == 0 && !bad.down:
				values = fmt.Sprintf("0+60x%d", before+after)
			default:
				values = fmt.Sprintf("0+60x%d %s", before-1, span(then, series, after))
			}
			g.Series = append(g.Series, map[string]string{"series": series, "values": values})
		}
		fired := fmt.Sprintf(`count(count_over_time(ALERTS{alertname=%q,alertstate="firing"}[%dm])) > bool 0`, a.name, after)
		g.Tests = []promql{
			{`count by (alertname) (count_over_time(ALERTS[1h]))`, fmt.Sprintf("%dm", before-1), []map[string]any{}},
			{fired, fmt.Sprintf("%dm", before+after), []map[string]any{{"labels": "{}", "value": 1}}},
		}
		file.Groups = append(file.Groups, g)
	}
	text, err = yaml.Marshal(file)
	expect.OK(t, err)
	path := filepath.Join(t.TempDir(), "test.yaml")
	expect.OK(t, os.WriteFile(path, text, 0o644))
	out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput()
	expect.True(t, err == nil, string(out[:min(len(out), 4000)]), err)
}

func merge(all ...map[string]float64) map[string]bool {
	out := map[string]bool{}
	for _, m := range all {
		for k := range m {
			out[k] = true
		}
	}
	return out
}

// span returns n+1 equal samples of a series, or n+1 missing ones.
func span(of map[string]float64, series string, n int) string {
	if v, is := of[series]; is {
		return fmt.Sprintf("%.0f+0x%d", v, n)
	}
	return strings.Repeat("_ ", n) + "_"
}

// Each alert has a case in alerts.
func TestAlertsHaveCases(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/ration.rules.yaml")
	expect.OK(t, err)
	for line := range bytes.Lines(text) {
		if name, is := strings.CutPrefix(strings.TrimSpace(string(line)), "- alert: "); is {
			expect.True(t, slices.ContainsFunc(alerts, func(a alertCase) bool { return a.name == name }), name, "has no case")
		}
	}
}
