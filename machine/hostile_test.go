package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// What users name their files and processes does not reach a terminal by way of JSON: a sentence has no control
// character when it is decoded, either.
func TestHostileNamesInSentences(t *testing.T) {
	const evil = "\x1b]0;x\a\x1b[2J\r\n\u202e\u009b"
	now := time.Now()
	bad := func(name string) Job {
		return Job{Path: "/tmp/" + name + evil + "/region", Owner: evil, State: Running, Created: now,
			Processes: []Process{{PID: 1, Name: evil, State: Live}, {PID: 2, Name: evil, State: Dead, Holdings: []Holding{{Total: 1 << 30}}}},
			Deaths:    []Death{{Time: now, PID: 3, Name: evil}}, Refusals: []Refusal{{Time: now, PID: 1}}}
	}
	unreadable := bad("unreadable")
	unreadable.Error = evil
	m := Machine{Jobs: []Job{bad("job"), unreadable}, Outside: []Outside{{PID: 5, Name: evil, User: evil, Container: evil, Used: 1 << 40}}}
	m.Findings = findingsOf(&m)
	m.addFinding(Finding{Kind: Unanswering, Text: evil, Remedy: evil})
	gone := Machine{Jobs: []Job{bad("gone")}}
	texts := map[string]string{}
	for _, f := range m.Findings {
		texts["finding "+f.Kind] = f.Text + f.Remedy + f.Job
	}
	for _, e := range Events(&gone, &m, now) {
		texts["event "+e.Kind] = e.Text
	}
	expect.True(t, len(texts) >= 7, "there are only", len(texts), "kinds of sentences", texts)
	for what, text := range texts {
		encoded, err := json.Marshal(text)
		var decoded string
		expect.True(t, err == nil && json.Unmarshal(encoded, &decoded) == nil && !strings.ContainsFunc(decoded, func(r rune) bool { return !unicode.IsPrint(r) }),
			what, decoded, err)
	}
}

// The limits of an operator are known whatever a tenant makes of the region, so that the job is compared with them.
func TestHostileRegionKeepsItsLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), job.RegionName)
	var limits region.Limits
	limits.Memory[1] = abi.MakeLimit(2 << 30)
	expect.OK(t, region.WriteLimitsFile(path, limits))
	for name, attack := range map[string]func() error{
		"no region": func() error { return os.WriteFile(path, []byte("not a region"), 0o600) },
		"cut short": func() error { return os.WriteFile(path, nil, 0o600) },
		"1 TiB":     func() error { return os.Truncate(path, 1<<40) },
		"not there": func() error { return os.Remove(path) },
		"a folder":  func() error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.RemoveAll(path)
			expect.OK(t, os.WriteFile(path, nil, 0o600))
			if name == "a folder" {
				expect.OK(t, os.Remove(path))
			}
			expect.OK(t, attack())
			j, err := readRegion(path, budgetForAll())
			expect.True(t, err != nil && len(j.Devices) == 1 && j.Devices[0].Device == 1 && j.Devices[0].Limited && j.Devices[0].Limit == 2<<30, err, j.Devices)
		})
	}
}
