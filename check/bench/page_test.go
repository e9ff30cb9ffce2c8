package bench

import (
	"strings"
	"testing"

	"ration/check/benchpage"
	"ration/check/expect"
)

// Rounds are compared with rounds: other work that makes a round slow for all three makes
// nothing of the difference.
func TestComparison(t *testing.T) {
	all := make([][][]float64, sides)
	for _, load := range []float64{0, 1000, 0, 500, 20} {
		all[nativeOne] = append(all[nativeOne], []float64{0, 100 + load})
		all[nativeTwo] = append(all[nativeTwo], []float64{0, 102 + load})
		all[inJob] = append(all[inJob], []float64{0, 131 + load})
	}
	c := comparison("call", all, 1)
	expect.True(t, c.Rounds == 5 && (c.More.Median == 31 || c.More.Median == 29) && c.More.Low == 29 && c.More.High == 31, c)
	expect.True(t, c.Native.Low == 100 && (c.Native.High == 1102 || c.Native.High == 1100) && c.Job.Low == 131, c)
	expect.True(t, c.Noise > 0 && c.Noise <= 0.02, "two natives that are 2 apart differ by", c.Noise)
}

func TestPage(t *testing.T) {
	r := Measurement{
		Machine: Host{CPU: "Xeon", Cores: 2}, Command: "ration bench report", Driver: StandIn,
		Comparisons: []Comparison{
			{Name: "clear", Native: benchpage.Spread{Low: 90, Median: 100, High: 110}, Job: benchpage.Spread{Low: 140, Median: 150, High: 160}, More: benchpage.Spread{Low: 40, Median: 50, High: 60}, Noise: 0.01},
			{Name: "lost in noise", Native: benchpage.Spread{Low: 90, Median: 100, High: 110}, Job: benchpage.Spread{Low: 90, Median: 103, High: 120}, More: benchpage.Spread{Low: -5, Median: 3, High: 10}, Noise: 0.05},
		},
		Results: []Result{{Bench: "update", About: "one charge", Rows: []Row{
			{Name: "charge", Unit: Nanoseconds, Value: 50, Low: 40, High: 60, Target: "≤ 12 ×", Verdict: OK}, {Name: "torn", Unit: Count},
		}}},
	}
	p := r.Page("0.2.0")
	if c := p.Comparisons[0]; c.More != "+50.0 ns" || c.MoreSpread != "+40.0 ns … +60.0 ns" || c.Verdict != "" || c.Job != (benchpage.Spread{Low: 140, Median: 150, High: 160}) {
		t.Errorf("got %+v", c)
	}
	c := p.Comparisons[1]
	expect.True(t, c.Verdict == "cannot tell" && c.MoreSpread == "-5.00 ns … +10.0 ns", c)
	g := p.Groups[0]
	expect.True(t, g.About == "One charge." && g.Values[0].Nanoseconds.Median == 50 && g.Values[1].Nanoseconds == (benchpage.Spread{}), g)
	expect.True(t, strings.Contains(p.Lead, "a stand-in took its place") && p.Warning == "", "the lead is", p.Lead)
	r.Command, r.Driver = "ration bench report --quick", "NVIDIA H200"
	if p := r.Page(""); p.Comparisons[0].More != "+50.0 ns (+50.0 %)" || strings.Contains(p.Lead, "stand-in") || !strings.Contains(p.Warning, "values mean nothing") || p.Groups[0].Values[0].Verdict != "" {
		t.Errorf("got %+v", p)
	}
}
