package policy

import (
	"maps"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
)

// A job is left alone after its process was ended, but not after it has itself ended: the next program of the user, or
// the next job of that path, may fall asleep as early as any other.
func TestIdlePauses(t *testing.T) {
	now := time.Now()
	pauses := idlePauses{
		"/its-process-was-ended": {1, now.Add(time.Second)},
		"/a-minute-ago":          {1, now.Add(-time.Second)},
		"/made-anew":             {1, now.Add(time.Second)},
		"/has-no-processes":      {1, now.Add(time.Second)},
	}
	pauses.end(map[string]idleJob{"/its-process-was-ended": {created: 1}, "/a-minute-ago": {created: 1}, "/made-anew": {created: 2}}, now)
	expect.True(t, slices.Equal(slices.Collect(maps.Keys(pauses)), []string{"/its-process-was-ended"}), "left alone are", pauses)
}

// Where only the library knows whether a job works, a rule with sleep_after needs a cap.
func TestSleepsUnmeasured(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "compute_max = \"50%\"\n": false, "sleep_after = \"30m\"\n": true, "sleep_after = \"30m\"\ncompute_max = \"50%\"\n": false,
	} {
		p, err := Parse("f", []byte("[everybody]\nmemory = \"1g\"\n"+text))
		expect.OK(t, err)
		expect.Equal(t, p.sleepsUnmeasured(), want, text)
	}
}
