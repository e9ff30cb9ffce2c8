package agent

import (
	"bufio"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/node"
	"ration/machine"
)

// Another machine gets which user holds what, and nothing else of a job. It gets a line only if that has changed.
func TestRemote(t *testing.T) {
	old := remoteGap
	remoteGap = time.Millisecond
	t.Cleanup(func() { remoteGap = old })
	m := webtest.Machine(2, 3, 2)
	for i := range m.Jobs {
		m.Jobs[i].Name, m.Jobs[i].Command, m.Jobs[i].Labels = "secretname", []string{"secretcommand"}, map[string]string{"project": "secretlabel"}
		m.Jobs[i].Path += "/secretpath"
		m.Jobs[i].Processes[0].Name = "secretprocess"
		webtest.Refuse(&m.Jobs[i], time.Now(), 1<<40)
	}
	m.Jobs[2].State = machine.Ended
	m.Outside = []machine.Outside{{Device: 1, PID: 4711, User: "erin", Name: "secretoutside", Cgroup: "secretcgroup", Used: 5}}
	source := webtest.NewSource(m, node.History{})
	server := httptest.NewServer(NewRemote(source, "1.2.3"))
	defer server.Close()
	defer server.CloseClientConnections()
	answer, err := server.Client().Get(server.URL)
	expect.OK(t, err)
	defer answer.Body.Close()
	expect.Equal(t, answer.Header.Get(headerVersion), "1.2.3")
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	next := func() (d delta) {
		t.Helper()
		for lines.Scan() && lines.Text() == "" { // signs of life
		}
		expect.True(t, !strings.Contains(lines.Text(), "secret") && !strings.Contains(lines.Text(), "4711"), lines.Text())
		expect.OK(t, json.Unmarshal(lines.Bytes(), &d))
		return d
	}
	first := next()
	expect.True(t, len(first.Devices) == 2 && len(first.Serials) == 2 && len(first.Jobs) == 2 && first.Jobs[0].Owner == "alice" && first.Jobs[0].Devices[0].Used > 0 && first.Outside[0].Used == 5, first)
	warm := 99
	source.Change(func(m *machine.Machine) { m.Devices[0].Temperature = &warm }) // no line
	source.Change(func(m *machine.Machine) { m.Jobs[1].Devices[0].Used = 77 })
	second := next()
	expect.True(t, len(second.Jobs) == 1 && second.Jobs[0].Devices[0].Used == 77 && second.Serials[0] == first.Serials[0] && second.Serials[1] > first.Serials[1], second)
	source.Change(func(m *machine.Machine) { m.Devices[0].Used = 88 })
	third := next()
	expect.True(t, len(third.Jobs) == 0 && third.Devices[0].Used == 88, third)
}
