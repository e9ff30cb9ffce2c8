package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/fleet"
	"ration/internal/job"
	"ration/machine"
)

// Users of made up machines. What is of one of them has the user's own word in it.
var madeUpUsers = map[int]string{7: "ofseven", 8: "ofeight", -1: "ofnobody"}

func madeUpJob(n, uid int) machine.Job {
	word := madeUpUsers[uid]
	return machine.Job{Name: word, Path: fmt.Sprintf("/jobs/%s-%d", word, n), Owner: word, UID: uid, State: machine.Running, Command: []string{word}, Created: time.Unix(0, int64(n)).UTC(),
		Devices: []machine.Device{{Used: 1}}, Processes: []machine.Process{{PID: n, Name: word, Holdings: []machine.Holding{{Total: 1}}}}, Reaped: []machine.Process{}, Refusals: []machine.Refusal{}, Deaths: []machine.Death{}}
}

// nextMachine changes a machine at random: jobs come, go, change and change places.
func nextMachine(r *rand.Rand, m *machine.Machine, n *int) machine.Machine {
	out := m.Clone()
	for range r.IntN(4) {
		at := 0
		if len(out.Jobs) > 0 {
			at = r.IntN(len(out.Jobs))
		}
		switch change := r.IntN(5); {
		case change == 0 || len(out.Jobs) == 0:
			*n++
			out.Jobs = append(out.Jobs, madeUpJob(*n, []int{7, 8, -1}[r.IntN(3)]))
		case change == 1:
			out.Jobs = append(out.Jobs[:at], out.Jobs[at+1:]...)
		case change == 2:
			other := r.IntN(len(out.Jobs))
			out.Jobs[at], out.Jobs[other] = out.Jobs[other], out.Jobs[at]
		case change == 3:
			out.Jobs[at].Processes[0].Holdings[0].Total++
		default: // it is another user's now
			out.Jobs[at] = madeUpJob(int(out.Jobs[at].Created.UnixNano()), []int{7, 8, -1}[r.IntN(3)])
		}
	}
	out.Findings = nil
	for i := range out.Jobs {
		out.Findings = append(out.Findings, machine.Finding{Kind: machine.Drift, Path: out.Jobs[i].Path, Text: out.Jobs[i].Name})
	}
	return out
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	expect.OK(t, err)
	return string(text)
}

// However a machine changes, and however much of it somebody misses: with what was sent one has what
// the whole would have been, and nothing was sent of a job that the whole has not.
func TestDeltas(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	n := 0
	now := &snapshot{}
	type follower struct {
		who  peer
		have map[uint64]machine.Job
		seen uint64
	}
	var all []*follower
	for _, who := range []peer{{uid: 0, all: true}, {uid: 7}, {uid: 8}, {uid: 9}, {uid: -1}} {
		all = append(all, &follower{who: who})
	}
	for step := range 2000 {
		now = newSnapshot(nextMachine(r, &now.Machine, &n), now)
		for _, f := range all {
			if r.IntN(3) == 0 {
				continue // it misses this one
			}
			sent := now.since(f.seen, f.who)
			text := asJSON(t, sent)
			for uid, word := range madeUpUsers {
				expect.Must(t, f.who.all || uid == f.who.uid && uid >= 0 || !strings.Contains(text, word),
					"step", step, "user", f.who.uid, "was sent", text)
			}
			var got delta
			expect.OK(t, json.Unmarshal([]byte(text), &got))
			fresh := len(got.Jobs)
			jobs, next, ok := fleet.Merge(f.have, got.Serials, got.Jobs)
			f.have, got.Jobs = next, jobs
			expect.Must(t, ok, "step", step, "user", f.who.uid, "cannot apply", text)
			whole := asJSON(t, Visible(&now.Machine, f.who.uid, f.who.all))
			have := asJSON(t, got.Machine)
			expect.Must(t, have == whole, "step", step, "user", f.who.uid, "has", have, "and not", whole)
			again := now.since(now.last, f.who)
			expect.Must(t, len(again.Jobs) == 0, "step", step, "of", fresh, "jobs", len(again.Jobs), "are sent again")
			f.seen = now.last
		}
	}
	expect.Must(t, n >= 100 && len(now.Jobs) != 0, n, "jobs", len(now.Jobs), "of them now")
}

// A job that is unchanged keeps its serial, and any other gets a new one.
func TestSerials(t *testing.T) {
	first := newSnapshot(machine.Machine{Jobs: []machine.Job{madeUpJob(1, 7), madeUpJob(2, 7)}}, &snapshot{})
	m := first.Clone()
	m.Jobs[1].Processes[0].Holdings[0].Total = 5
	second := newSnapshot(m, first)
	expect.True(t, reflect.DeepEqual(first.serials, []uint64{1, 2}) && reflect.DeepEqual(second.serials, []uint64{1, 3}) && second.last == 3,
		first.serials, "then", second.serials)
}

// standIn answers at the agent's socket as a test wants.
func standIn(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(testFolder(t), job.AgentSocket)
	l, err := net.Listen("unix", path)
	expect.OK(t, err)
	s := &http.Server{Handler: answer}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return NewClient(path)
}

// A delta that contradicts itself is an error, and so is one that a client cannot complete.
func TestBrokenDelta(t *testing.T) {
	now := newSnapshot(machine.Machine{Jobs: []machine.Job{madeUpJob(1, 7), madeUpJob(2, 7)}}, &snapshot{})
	whole, partial := now.since(0, peer{all: true}), now.since(1, peer{all: true})
	more := whole
	more.Jobs = append(more.Jobs, madeUpJob(3, 7))
	for name, d := range map[string]delta{"a job is missing": partial, "a job too many": more} {
		c := standIn(t, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, peer{}, func() any { return d }) })
		for u, err := range c.Watch(t.Context()) {
			expect.True(t, err != nil && !errors.Is(err, ErrSilent), name, u.Machine, err)
		}
	}
}

// A follower of an agent has the machine and each event once, is sent only the jobs that have changed, and
// hears of the agent's end.
func TestWatch(t *testing.T) {
	folder := testFolder(t)
	holder(t, "quiet")
	one := holder(t, "train")
	a := startAgent(t, Options{})
	stop, served := serveAgent(t, a, folder)
	a.await(t, machine.RequestRefused, 2)
	c := NewClient(filepath.Join(folder, job.AgentSocket))
	seen := map[machine.EventID]bool{}
	var before *machine.Machine
	var last error
	for u, err := range c.Watch(t.Context()) {
		if last = err; err != nil {
			break
		}
		for _, e := range u.Events {
			expect.True(t, !seen[e.ID()], e, "is told twice")
			seen[e.ID()] = true
		}
		if before == nil {
			expect.Must(t, len(u.Machine.Jobs) == 2 && len(seen) == 4,
				"the first has", len(u.Machine.Jobs), "jobs, and", len(seen), "events")
			before = u.Machine
			one.kill()
		}
		quiet := find(u.Machine, "quiet")
		expect.Equal(t, &quiet.Processes[0], &find(before, "quiet").Processes[0], "a job that is unchanged was sent again")
		if p := find(u.Machine, "train").Processes; len(p) == 1 && p[0].State == machine.Dead { // nobody reaps it
			expect.True(t, asJSON(t, u.Machine.Jobs) == asJSON(t, a.Machine().Jobs), "got", asJSON(t, u.Machine.Jobs))
			stop()
		}
	}
	expect.True(t, last != nil && !errors.Is(last, ErrSilent), "it ended with", last)
	expect.Equal(t, <-served, nil)
}

func find(m *machine.Machine, name string) *machine.Job {
	for i := range m.Jobs {
		if m.Jobs[i].Name == name {
			return &m.Jobs[i]
		}
	}
	return &machine.Job{}
}
