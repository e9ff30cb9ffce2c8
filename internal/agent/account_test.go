package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// lend lets UIDs from firstLent on be lent to one user, for this test.
func lend(t *testing.T) {
	t.Helper()
	before := accountOf
	t.Cleanup(func() { accountOf = before })
	accountOf = func(uid int) int {
		if uid >= firstLent {
			return -2
		}
		return uid
	}
}

const firstLent = 100000

// Events of thousands of UIDs that are lent to one user hide none of another's, and nor does their
// history.
func TestEventsOfLentUsers(t *testing.T) {
	lend(t)
	const ada, own = 8, 100
	r, h := newEventRing(), newHistory()
	for i := range own {
		r.add([]machine.Event{{Kind: machine.ProcessDied, UID: ada, Death: &machine.Death{Time: time.Unix(0, int64(i))}}})
		h.addJob(&machine.Job{Path: fmt.Sprint(i), UID: ada, Devices: []machine.Device{{Used: 1}}}, 1, map[int]bool{})
	}
	var flood []machine.Event
	for i := range 2 * maxEvents {
		flood = append(flood, machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(i), UID: firstLent + i})
	}
	r.add(flood)
	for i := range 2 * maxHistory {
		h.addJob(&machine.Job{Path: fmt.Sprint("lent", i), UID: firstLent + i, Devices: []machine.Device{{Used: 1}}}, 1, map[int]bool{})
	}
	events, _ := r.since(0)
	n := 0
	for i := range events {
		if events[i].UID == ada {
			n++
		}
	}
	expect.True(t, n == own && len(events) == maxEvents, n, "of", own, "events are left, of", len(events), "in all")
	n = 0
	for _, s := range h.jobs {
		if s.of.UID == ada {
			n++
		}
	}
	expect.True(t, n == own && len(h.jobs) == maxHistory, n, "of", own, "series are left, of", len(h.jobs), "in all")
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
	expect.Must(t, busy <= 2, busy, "are under way")
	<-done
	r.close()
	expect.Equal(t, len(begun), 2, "begun for", begun)
}
