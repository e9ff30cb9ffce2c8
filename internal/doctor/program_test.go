package doctor

import (
	"strings"
	"testing"

	"ration/check/expect"
)

func TestCheckCalls(t *testing.T) {
	for _, tt := range []struct{ name, log, verdict, text string }{
		{"an old library", "ration[7] 12:03:04.567Z train: slot 3, host PID 7\n", Skip, "does not say"},
		{"all counted", "ration[7] 12:03:04.567Z train: resolves cuMemAlloc_v2: counted\nration[7] 12:03:04.567Z train: resolves cuLaunchKernel (13000): passed on\n" +
			"ration[7] 12:03:04.567Z train: resolves cuMemHostAlloc: passed on\nration[7] 12:03:04.567Z train: resolves cuMemPoolSetAccess: passed on\n", Pass, "1 calls that are counted, and 3"},
		{"one that is not", "ration[7] 12:03:04.567Z train: resolves cuMemAllocFancy (14000): passed on\nration[7] 12:03:04.567Z train: resolves cuArray4DCreate: passed on\n", Warn, "cuMemAllocFancy"},
	} {
		c := &checker{}
		c.checkCalls(strings.NewReader(tt.log))
		if c := c.report.Checks[0]; c.Verdict != tt.verdict || !strings.Contains(c.Text, tt.text) {
			t.Errorf("%s: got %s: %s", tt.name, c.Verdict, c.Text)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string][2]int{"6.18.44-fc": {6, 18}, "3.10.0-1160.el7": {3, 10}, "5.4-rc1": {5, 4}, "": {0, 0}, "6": {0, 0}} {
		major, minor := parseVersion(text)
		expect.Equal(t, [2]int{major, minor}, want, text, major, ".", minor)
	}
}
