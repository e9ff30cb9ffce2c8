package machine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"ration/check/expect"
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
