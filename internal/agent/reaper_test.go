package agent

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"ration/machine"
)

// A job whose dead stay is tried again, and more and more rarely; a user's are one at a time.
func TestReaper(t *testing.T) {
	jobs := []machine.Job{{Name: "a", Path: "/a/region", UID: 7, Processes: []machine.Process{{State: machine.Dead}}}, {Name: "b", Path: "/b/region", UID: 7, Processes: []machine.Process{{State: machine.Dead}}},
		{Path: "/elsewhere", UID: 7, Processes: []machine.Process{{State: machine.Dead}}}, {Name: "c", Path: "/c/region", UID: 8, Processes: []machine.Process{{State: machine.Live}}}}
	done := make(chan []string, 10)
	r := newReaper(func(_ context.Context, paths []string, uid int) error { done <- paths; return nil }, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	r.reap(jobs)
	if got := <-done; len(got) != 2 || got[0] != "/a/region" || got[1] != "/b/region" {
		t.Errorf("got %v", got)
	}
	r.wait.Wait()
	for _, wait := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		if got := r.tried["/a/region"]; got.wait != wait {
			t.Fatalf("waits %v, want %v", got.wait, wait)
		}
		r.reap(jobs) // too early
		if len(done) != 0 {
			t.Fatal("it was tried too early")
		}
		for path, tr := range r.tried {
			tr.due = time.Time{}
			r.tried[path] = tr
		}
		clear(r.due)
		r.reap(jobs)
		<-done
		r.wait.Wait()
	}
	r.reap(jobs[2:]) // its dead have been returned
	if len(r.tried) != 0 {
		t.Errorf("got %v", r.tried)
	}
	r.close()
}
