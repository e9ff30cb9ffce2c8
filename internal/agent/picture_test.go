package agent

import (
	"context"
	"encoding/json"
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
var pictureUsers = map[int]string{7: "ofseven", 8: "ofeight", -1: "ofnobody"}

func madeUpJob(n, uid int) machine.Job {
	word := pictureUsers[uid]
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
	now := &picture{}
	type follower struct {
		who    peer
		mirror Mirror
		seen   uint64
	}
	var all []*follower
	for _, who := range []peer{{uid: 0, all: true}, {uid: 7}, {uid: 8}, {uid: 9}, {uid: -1}} {
		all = append(all, &follower{who: who})
	}
	for step := range 2000 {
		now = newPicture(nextMachine(r, &now.Machine, &n), now)
		for _, f := range all {
			if r.IntN(3) == 0 {
				continue // it misses this one
			}
			sent := now.since(f.seen, f.who)
			text := asJSON(t, sent)
			for uid, word := range pictureUsers {
				if !f.who.all && (uid != f.who.uid || uid < 0) && strings.Contains(text, word) {
					t.Fatalf("step %d: user %d was sent %s", step, f.who.uid, text)
				}
			}
			var got delta
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			fresh := len(got.Jobs)
			if !f.mirror.apply(&got) {
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
	first := newPicture(machine.Machine{Jobs: []machine.Job{madeUpJob(1, 7), madeUpJob(2, 7)}}, &picture{})
	m := first.Clone()
	m.Jobs[1].Processes[0].Holdings[0].Total = 5
	second := newPicture(m, first)
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

// A copy that has lost something, or comes to another agent whose serials are the same for other jobs,
// has the whole with the next question; an agent that contradicts itself is an error, and no endless
// question; and one of an earlier version, which sends the whole, is believed.
func TestMirrorIsMadeWhole(t *testing.T) {
	now := newPicture(machine.Machine{Jobs: []machine.Job{madeUpJob(1, 7), madeUpJob(2, 7), madeUpJob(3, 7)}}, &picture{})
	var asked []string
	before, wrong := false, false
	c := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		since := r.URL.Query().Get("since")
		asked = append(asked, since)
		switch seen := uint64(0); {
		case before:
			writeJSON(w, peer{}, func() any { return &now.Machine })
		default:
			_, _ = fmt.Sscanf(since, "a-%d", &seen)
			d := now.since(seen, peer{all: true})
			d.Since = fmt.Sprintf("a-%d", now.last)
			if wrong {
				d.Jobs = d.Jobs[:len(d.Jobs)-1]
			}
			writeJSON(w, peer{}, func() any { return d })
		}
	})
	m := NewMirror(c)
	check := func(what string, want ...string) {
		t.Helper()
		got, err := m.Machine()
		if err != nil || asJSON(t, got) != asJSON(t, &now.Machine) || !reflect.DeepEqual(asked, want) {
			t.Errorf("%s: %v, asked %q, got %s", what, err, asked, asJSON(t, got))
		}
		asked = nil
	}
	check("the first", "")
	changed := now.Clone()
	changed.Jobs[1].State = machine.Idle
	now = newPicture(changed, now)
	check("a change", "a-3")
	delete(m.jobs, 1)
	check("a job is lost", "a-4", "")
	now = newPicture(machine.Machine{Jobs: []machine.Job{madeUpJob(5, 7), madeUpJob(6, 7), madeUpJob(7, 7), madeUpJob(8, 7)}}, &picture{})
	m.since = "b-4" // of another agent, which had those serials too
	check("another agent", "b-4", "")
	before = true
	check("an earlier version", "a-4")
	before, wrong = false, true
	m = NewMirror(c)
	if got, err := m.Machine(); err == nil || !reflect.DeepEqual(asked, []string{""}) {
		t.Errorf("a job is missing: %v, asked %q", got, asked)
	}
}

// Who follows an agent gets of each change the jobs that have changed, also from the next agent; who
// asks as earlier versions do gets what these got.
func TestMirrorOfAgent(t *testing.T) {
	folder := testFolder(t)
	c := NewClient(filepath.Join(folder, job.AgentSocket))
	mirror := NewMirror(c)
	holder(t, "quiet")
	one := holder(t, "train")
	for round := range 2 { // the second is another agent's
		a := startAgent(t, Options{})
		socket, release, err := Listen(folder)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- a.Serve(ctx, socket) }()
		a.await(t, machine.RequestRefused, 2)
		m, err := mirror.Machine()
		if err != nil || asJSON(t, m) != asJSON(t, a.Machine()) || len(m.Jobs) != 2 {
			t.Fatalf("round %d: %v, %+v", round, err, m)
		}
		var whole map[string]any
		if err := c.get("/v1/machine", &whole); err != nil || whole["serials"] != nil || whole["since"] != nil || len(whole["jobs"].([]any)) != 2 {
			t.Errorf("round %d: %v, %v", round, err, whole)
		}
		seen := mirror.since
		if round == 0 {
			one.kill()
			for state := ""; state != machine.Dead; { // nobody reaps it
				next := a.Changed()
				if p := find(a.Machine(), "train").Processes; len(p) == 1 {
					state = p[0].State
				}
				if state != machine.Dead {
					<-next
				}
			}
			var d delta
			if err := c.get("/v1/machine?since="+seen, &d); err != nil || len(d.Serials) != 2 || len(d.Jobs) != 1 || d.Jobs[0].Name != "train" {
				t.Errorf("%v: %d serials, %+v", err, len(d.Serials), d.Jobs)
			}
			if m, err := mirror.Machine(); err != nil || asJSON(t, m) != asJSON(t, a.Machine()) {
				t.Errorf("%v, %+v", err, m)
			}
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		release()
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
