package metrics

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"ration/check/expect"
)

var ofMachine = []*metric{buildInfo, deviceInfo, deviceSize, deviceUsed, deviceRationed, deviceOutside, deviceExempt, deviceOverLimit, outsideProcesses, rationedJobs,
	unlimitedJobs, deviceTemperature, devicePower, deviceBusy, jobsByState, policyRefused, findings}

var ofJobs = []*metric{jobsWithoutSeries, jobUsed, jobLimit, jobAside, jobPeak, jobRefusals, jobShare, jobCap, jobComputeUsed, jobComputeWaited, jobProcesses, jobDeaths,
	jobGaveUp, jobStarted, jobIdle, jobSleep, jobWakeWait, jobPod}

var ofAccounts = []*metric{jobHeld, jobHeldIdle, jobAsleep, jobTime, userHeld, userIdle, userAsleep, userTime}

var ofAgent = []*metric{agentEvents, agentScans, agentScan, agentScanned, policyUp}

// names are the names of all metrics.
var names = func() (out []string) {
	for _, m := range slices.Concat(ofMachine, ofJobs, ofAccounts, ofAgent) {
		out = append(out, m.name)
	}
	return out
}()

var metricName = regexp.MustCompile(`\bration_[a-z_]+\b`)

// used returns the metrics that an expression names, and complains of those that there are not.
func used(t *testing.T, where, expression string) []string {
	t.Helper()
	found := metricName.FindAllString(expression, -1)
	expect.True(t, len(found) != 0 || strings.HasPrefix(expression, "up{"), where, expression, "is of no metric")
	for _, name := range found {
		expect.True(t, slices.Contains(names, name), where, "there is no metric", name)
	}
	return found
}

// The alert rules are of metrics that there are, each says what is wrong and what to do, and the page lists them.
func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/ration.rules.yaml")
	expect.OK(t, err)
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	err = dec.Decode(&rules)
	expect.Must(t, err == nil && len(rules.Groups) == 1 && len(rules.Groups[0].Rules) >= 5, rules, err)
	kind := regexp.MustCompile(`ration_findings\{kind="([a-z_]+)"\}`)
	var shipped []string
	for _, r := range rules.Groups[0].Rules {
		used(t, r.Alert, r.Expr)
		expect.True(t, r.Labels["severity"] != "" && r.Annotations["summary"] != "" && r.Annotations["description"] != "",
			r.Alert, "no severity, summary or description")
		m := kind.FindStringSubmatch(r.Expr)
		expect.True(t, m == nil || slices.ContainsFunc(kinds, func(k string) bool { return kindLabel(k) == m[1] }),
			r.Alert, "there is no finding", m)
		shipped = append(shipped, r.Alert)
	}
	page, err := os.ReadFile("../../docs/monitoring.md")
	expect.OK(t, err)
	_, table, _ := strings.Cut(string(page), "| alert | when |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, m := range regexp.MustCompile("`(Ration[A-Za-z]+)`").FindAllStringSubmatch(table, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	slices.Sort(shipped)
	expect.Equal(t, strings.Join(listed, " "), strings.Join(shipped, " "), "the table of docs/monitoring.md has other alerts")
}

// Each panel of the dashboard has data, by what an agent exports as it is shipped.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/ration.json")
	expect.OK(t, err)
	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, RefID string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	err = json.Unmarshal(text, &dashboard)
	expect.Must(t, err == nil && dashboard.UID == "ration" && len(dashboard.Panels) >= 5, dashboard, err)
	bad := scene{machine: example(), agent: quiet().agent, totals: exampleAccounts()}
	exported := slices.Collect(maps.Keys(bad.samples(t)))
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		expect.True(t, !ids[p.ID] && len(p.Targets) != 0, p.Title, "its number is another's, or it shows nothing")
		ids[p.ID] = true
		for _, target := range p.Targets {
			for _, name := range used(t, p.Title, target.Expr) {
				expect.True(t, slices.ContainsFunc(exported, func(series string) bool { return strings.HasPrefix(series, name+"{") }), p.Title, name, "has no data")
			}
		}
	}
	for _, v := range dashboard.Templating.List {
		if q, is := v.Query.(map[string]any); is {
			used(t, "a variable", q["query"].(string))
		}
	}
}

// docs/monitoring.md has every metric, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/monitoring.md")
	expect.OK(t, err)
	documented := used(t, "docs/monitoring.md", string(page))
	for _, name := range names {
		expect.True(t, slices.Contains(documented, name), "docs/monitoring.md does not have", name)
	}
}
