package metrics

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\bration_[a-z_]+\b`)

// used returns the metrics that an expression names, and complains of those that there are not.
func used(t *testing.T, where, expression string) []string {
	t.Helper()
	found := metricName.FindAllString(expression, -1)
	if len(found) == 0 {
		t.Errorf("%s: %q is of no metric", where, expression)
	}
	for _, name := range found {
		if !slices.Contains(names, name) {
			t.Errorf("%s: there is no metric %s", where, name)
		}
	}
	return found
}

// The alert rules are of metrics that there are, and each says what is wrong and what to do.
func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/ration.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := dec.Decode(&rules); err != nil || len(rules.Groups) != 1 || len(rules.Groups[0].Rules) < 5 {
		t.Fatalf("%+v, %v", rules, err)
	}
	kind := regexp.MustCompile(`ration_findings\{kind="([a-z_]+)"\}`)
	for _, r := range rules.Groups[0].Rules {
		used(t, r.Alert, r.Expr)
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: no severity, summary or description", r.Alert)
		}
		if m := kind.FindStringSubmatch(r.Expr); m != nil && !slices.ContainsFunc(kinds, func(k string) bool { return kindLabel(k) == m[1] }) {
			t.Errorf("%s: there is no finding %s", r.Alert, m[1])
		}
	}
}

// The dashboard is of metrics that there are.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/ration.json")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := json.Unmarshal(text, &dashboard); err != nil || dashboard.UID != "ration" || len(dashboard.Panels) < 5 {
		t.Fatalf("%+v, %v", dashboard, err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("%s: its number is another's, or it shows nothing", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			used(t, p.Title, target.Expr)
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
	if err != nil {
		t.Fatal(err)
	}
	documented := used(t, "docs/monitoring.md", string(page))
	for _, name := range names {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/monitoring.md does not have %s", name)
		}
	}
}
