package gputest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"ration/check/bench"
	"ration/check/benchpage"
)

// What gpu-test keeps as JSON is the same page again.
func TestPage(t *testing.T) {
	r := Report{
		Machine: About{Machine: bench.Machine{CPU: "Xeon", Cores: 16}, GPU: "NVIDIA H200", Memory: 140 << 30, Driver: "580", CUDA: "13.0", Frameworks: map[string]string{"torch": "2.11"}},
		Checks:  []Outcome{{Check: "limit/plain", Verdict: Pass, Summary: "held"}, {Check: "limit/jax", Verdict: Fail, Summary: "exceeded"}},
		Measures: []Row{
			{Name: "cuMemFree", Unit: nanoseconds, Native: Quantiles{26, 25, 28}, Control: Quantiles{28, 26, 29}, Ration: Quantiles{30, 29, 33}, More: Quantiles{3, 1, 6}, Ratio: 1.1, Target: "≤ +1 %", Verdict: Kept},
			{Name: "cuMemAlloc", Unit: nanoseconds, Native: Quantiles{100, 90, 110}, Control: Quantiles{102, 92, 112}, Ration: Quantiles{150, 140, 160}, Ratio: 1.5, Target: "≤ +1 %", Verdict: Missed},
			{Name: "train", Why: "needs torch"},
		},
	}
	p := r.Page()
	var names []string
	for _, c := range p.Comparisons {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "cuMemAlloc train cuMemFree" {
		t.Errorf("missed targets are not first: %s", got)
	}
	if c := p.Comparisons[2]; c.Native != (benchpage.Spread{Low: 25, Median: 27, High: 29}) || c.Job != (benchpage.Spread{Low: 29, Median: 30, High: 33}) {
		t.Errorf("spreads are %+v", c)
	}
	if p.Checks[0].Name != "limit/jax" {
		t.Errorf("failed checks are not first: %v", p.Checks)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	var one, two bytes.Buffer
	if err := benchpage.Write(&one, p); err != nil {
		t.Fatal(err)
	}
	if err := benchpage.Write(&two, again.Page()); err != nil || one.String() != two.String() {
		t.Errorf("another page after a look at the JSON: %v", err)
	}
}
