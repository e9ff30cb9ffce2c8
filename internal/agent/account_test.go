package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"ration/machine"
)

// lend lets UIDs from firstLent on be lent to one user, for this test.
func lend(t *testing.T) (account int) {
	t.Helper()
	account = -2
	before := accountOf
	t.Cleanup(func() { accountOf = before })
	accountOf = func(uid int) int {
		if uid >= firstLent {
			return account
		}
		return uid
	}
	return account
}

const firstLent = 100000

// A user to whom thousands of UIDs are lent has the connections of one.
func TestConnectionsOfLentUsers(t *testing.T) {
	me := lend(t)
	accountOf = func(int) int { return me } // also that of the user who runs this
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{Listener: socket, users: map[int]*asker{}}
	defer l.Close()
	c, err := net.Dial("unix", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if p := accepted.(*peerConn).peer; len(l.users) != 1 || l.users[me] == nil || l.users[me] != p.asker || p.uid < 0 {
		t.Errorf("%+v has a connection, and these count: %v", p, l.users)
	}
	_ = accepted.Close()
	if len(l.users) != 0 {
		t.Errorf("left are %v", l.users)
	}
}

// Events of thousands of UIDs that are lent to one user hide none of another's, and nor does their
// history.
func TestEventsOfLentUsers(t *testing.T) {
	lend(t)
	const ada, own = 8, 100
	r, h := newEventRing(), newHistory()
	for i := range own {
		r.add([]machine.Event{{Kind: machine.ProcessDied, UID: ada, Death: &machine.Death{Time: int64(i)}}})
		h.addJob(&machine.Job{Path: fmt.Sprint(i), UID: ada, Devices: []machine.Device{{Used: 1}}}, 1)
	}
	var flood []machine.Event
	for i := range 2 * maxEvents {
		flood = append(flood, machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(i), UID: firstLent + i})
	}
	r.add(flood)
	for i := range 2 * maxHistory {
		h.addJob(&machine.Job{Path: fmt.Sprint("lent", i), UID: firstLent + i, Devices: []machine.Device{{Used: 1}}}, 1)
	}
	events, _, _ := r.since(0)
	n := 0
	for i := range events {
		if events[i].UID == ada {
			n++
		}
	}
	if n != own || len(events) != maxEvents {
		t.Errorf("%d of %d events are left, of %d in all", n, own, len(events))
	}
	n = 0
	for _, s := range h.jobs {
		if s.of.UID == ada {
			n++
		}
	}
	if n != own || len(h.jobs) != maxHistory {
		t.Errorf("%d of %d series are left, of %d in all", n, own, len(h.jobs))
	}
}

// However many UIDs a user is lent, and though each stops the process that is to return what its dead
// hold: there is one of these at a time, and room for another user's.
func TestReapersOfLentUsers(t *testing.T) {
	lend(t)
	const ada = 8
	dead := []machine.Process{{State: machine.Dead}}
	var jobs []machine.Job
	for i := range 4 * maxReaping {
		jobs = append(jobs, machine.Job{Name: "a", Path: fmt.Sprintf("/%d/region", i), UID: firstLent + i, Processes: dead})
	}
	var mu sync.Mutex
	begun := map[int]bool{}
	done := make(chan struct{})
	r := newReaper(func(ctx context.Context, _ []string, uid int) error {
		mu.Lock()
		begun[uid] = true
		mu.Unlock()
		if uid == ada {
			close(done)
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	r.reap(jobs)
	r.reap(append(jobs, machine.Job{Name: "b", Path: "/b/region", UID: ada, Processes: dead}))
	r.mu.Lock()
	busy := len(r.busy)
	r.mu.Unlock()
	if busy > 2 {
		t.Fatalf("%d are under way", busy)
	}
	<-done
	r.close()
	if len(begun) != 2 {
		t.Errorf("begun for %v", begun)
	}
}
