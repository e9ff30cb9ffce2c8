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
	if err != nil {
		t.Fatal(err)
	}
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
		have jobsBySerial
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
				if !f.who.all && (uid != f.who.uid || uid < 0) && strings.Contains(text, word) {
					t.Fatalf("step %d: user %d was sent %s", step, f.who.uid, text)
				}
			}
			var got delta
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			fresh := len(got.Jobs)
			next, ok := f.have.apply(&got)
			if f.have = next; !ok {
				t.Fatalf("step %d: user %d cannot apply %s", step, f.who.uid, text)
			}
			whole := asJSON(t, Visible(&now.Machine, f.who.uid, f.who.all))
			if have := asJSON(t, got.Machine); have != whole {
				t.Fatalf("step %d: user %d has\n%s, and not\n%s", step, f.who.uid, have, whole)
			}
			if again := now.since(now.last, f.who); len(again.Jobs) > 0 {
				t.Fatalf("step %d: of %d jobs %d are sent again", step, fresh, len(again.Jobs))
			}
			f.seen = now.last
		}
	}
	if n < 100 || len(now.Jobs) == 0 {
		t.Fatalf("%d jobs, %d of them now", n, len(now.Jobs))
	}
}

// A job that is unchanged keeps its serial, and any other gets a new one.
func TestSerials(t *testing.T) {
	first := newSnapshot(machine.Machine{Jobs: []machine.Job{madeUpJob(1, 7), madeUpJob(2, 7)}}, &snapshot{})
	m := first.Clone()
	m.Jobs[1].Processes[0].Holdings[0].Total = 5
	second := newSnapshot(m, first)
	if !reflect.DeepEqual(first.serials, []uint64{1, 2}) || !reflect.DeepEqual(second.serials, []uint64{1, 3}) || second.last != 3 {
		t.Errorf("got %v, then %v", first.serials, second.serials)
	}
}

// standIn answers at the agent's socket as a test wants.
func standIn(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(testFolder(t), job.AgentSocket)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
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
			if err == nil || errors.Is(err, ErrSilent) {
				t.Errorf("%s: %+v, %v", name, u.Machine, err)
			}
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
			if seen[e.ID()] {
				t.Errorf("%+v is told twice", e)
			}
			seen[e.ID()] = true
		}
		if before == nil {
			if len(u.Machine.Jobs) != 2 || len(seen) != 4 {
				t.Fatalf("the first has %d jobs, and %d events", len(u.Machine.Jobs), len(seen))
			}
			before = u.Machine
			one.kill()
		}
		if quiet := find(u.Machine, "quiet"); &quiet.Processes[0] != &find(before, "quiet").Processes[0] {
			t.Error("a job that is unchanged was sent again")
		}
		if p := find(u.Machine, "train").Processes; len(p) == 1 && p[0].State == machine.Dead { // nobody reaps it
			if asJSON(t, u.Machine.Jobs) != asJSON(t, a.Machine().Jobs) {
				t.Errorf("got %s", asJSON(t, u.Machine.Jobs))
			}
			stop()
		}
	}
	if last == nil || errors.Is(last, ErrSilent) {
		t.Errorf("it ended with %v", last)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func find(m *machine.Machine, name string) *machine.Job {
	for i := range m.Jobs {
		if m.Jobs[i].Name == name {
			return &m.Jobs[i]
		}
	}
	return &machine.Job{}
}
