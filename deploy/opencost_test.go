package deploy

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/usage"
)

// customCosts is OpenCost's CustomCostResponse, by the names of its fields (protos/customcost/messages.proto there).
type customCosts struct {
	Metadata map[string]string `json:"metadata"`
	Source   string            `json:"cost_source"`
	Domain   string            `json:"domain"`
	Version  string            `json:"version"`
	Currency string            `json:"currency"`
	Start    time.Time         `json:"start"`
	End      time.Time         `json:"end"`
	Errors   []string          `json:"errors"`
	Costs    []customCost      `json:"costs"`
}

type customCost struct {
	Zone        string            `json:"zone"`
	Account     string            `json:"account_name"`
	Category    string            `json:"charge_category"`
	Description string            `json:"description"`
	Name        string            `json:"resource_name"`
	Type        string            `json:"resource_type"`
	ID          string            `json:"id"`
	Provider    string            `json:"provider_id"`
	Billed      float64           `json:"billed_cost"`
	List        float64           `json:"list_cost"`
	UnitPrice   float64           `json:"list_unit_price"`
	Quantity    float64           `json:"usage_quantity"`
	Unit        string            `json:"usage_unit"`
	Labels      map[string]string `json:"labels"`
}

// costsOf runs the recipe of docs/opencost.md.
func costsOf(t *testing.T, report usage.Report, args ...string) (out customCosts) {
	t.Helper()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not installed (make test installs it)")
	}
	text, err := json.Marshal(report)
	expect.OK(t, err)
	cmd := exec.Command("jq", append([]string{"--arg", "zone", "gpu1", "--arg", "currency", "EUR", "--argjson", "gib_hour", "0.5", "--argjson", "gpu_hour", "2", "-f", "opencost/costs.jq"}, args...)...)
	cmd.Stdin = bytes.NewReader(text)
	made, err := cmd.Output()
	expect.OK(t, err, string(made))
	decoder := json.NewDecoder(bytes.NewReader(made))
	decoder.DisallowUnknownFields()
	expect.OK(t, decoder.Decode(&out))
	return out
}

func TestOpenCost(t *testing.T) {
	from := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	const gibHour = 3600 << 30
	report := usage.Report{From: from, To: from.Add(24 * time.Hour), Watched: 86400, By: usage.ByJob, Lines: []usage.Line{
		{User: "anna", Project: "vision", Job: "train", Held: 10 * gibHour, Reserved: 20 * gibHour, Seconds: 1800, Sampled: 1800},
		{User: "ben", Job: "a/b\n\"", Held: 4 * gibHour},
		{User: "ben", Job: "nothing"},
	}}
	got := costsOf(t, report)
	expect.Equal(t, got.Source+" "+got.Domain+" "+got.Currency, "gpu ration EUR", "the response is about")
	expect.Equal(t, got.Start, report.From, "the window begins")
	expect.Equal(t, got.End, report.To, "the window ends")
	expect.Equal(t, len(got.Errors), 0, "errors", got.Errors)
	expect.Equal(t, len(got.Costs), 3, "costs")
	memory, gpu, bens := got.Costs[0], got.Costs[1], got.Costs[2]
	expect.Equal(t, memory.Quantity, 10, "GiB-Hours held")
	expect.Equal(t, memory.Billed, 5, "the cost of memory")
	expect.Equal(t, memory.Unit+" "+memory.Type+" "+memory.Account+" "+memory.Name, "GiB-Hours gpu-memory vision train", "memory")
	expect.Equal(t, gpu.Billed, 1, "the cost of half an hour")
	expect.Equal(t, gpu.Labels["sampled"], "true", "time by the driver's samples is marked")
	expect.Equal(t, memory.Labels["sampled"], "", "memory is not")
	expect.Equal(t, bens.Account, "ben", "the account of a job without a project")
	expect.Equal(t, bens.Labels["job"], "a/b\n\"", "a name that a user chose")
	expect.True(t, !strings.ContainsAny(bens.ID, "\n\""), bens.ID)
	expect.Equal(t, costsOf(t, report, "--arg", "memory", "reserved").Costs[0].Billed, 10, "the cost of what was reserved")

	// Hours that nobody has watched are no hours without use.
	report.Watched, report.To = 3600, report.To.Add(time.Millisecond)
	got = costsOf(t, report)
	expect.True(t, len(got.Errors) == 1 && strings.HasPrefix(got.Errors[0], "an agent watched 3600 of 86400 seconds"), got.Errors)
	ids := map[string]bool{}
	for _, c := range got.Costs {
		ids[c.ID] = true
	}
	expect.Equal(t, len(ids), len(got.Costs), "different IDs")
}
