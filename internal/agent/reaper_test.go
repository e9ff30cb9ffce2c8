package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
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
		got := r.tried["/a/region"]
		expect.Must(t, got.wait == wait, "waits", got.wait, wait)
		r.reap(jobs) // too early
		expect.Must(t, len(done) == 0, "it was tried too early")
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
	expect.Equal(t, len(r.tried), 0, r.tried)
	r.close()
}

// A try while the driver takes back what a process held returns nothing. When the process has ended, the job
// is tried at once, also where that was in the middle of the try.
func TestReaperTriesAgainAfterTheEnd(t *testing.T) {
	jobs := []machine.Job{{Name: "a", Path: "/a/region", UID: 7, Processes: []machine.Process{{State: machine.Dead}}}}
	tries := make(chan func(), 10)
	r := newReaper(func(context.Context, []string, int) error { (<-tries)(); return nil }, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer r.close()
	try := func(meanwhile func()) {
		t.Helper()
		clear(r.due) // not the machine's speed is tested
		tries <- meanwhile
		r.reap(jobs)
		r.wait.Wait()
		expect.Must(t, len(tries) == 0, "it was not tried")
	}
	nothing := func() {}
	try(nothing)
	r.hasEnded("/b")
	r.hasEnded("/a")
	try(func() { r.hasEnded("/a") })
	try(nothing)
	clear(r.due)
	tries <- nothing
	if r.reap(jobs); len(tries) != 1 || len(r.busy) != 0 || len(r.ended) != 0 {
		t.Errorf("nothing has ended since, and it is tried again; %v", r.ended)
	}
}

// That a job has ended before its dead could be returned is no news.
func TestReaperOfJobThatHasEnded(t *testing.T) {
	stands := filepath.Join(t.TempDir(), "region")
	expect.OK(t, os.WriteFile(stands, nil, 0o600))
	for _, path := range []string{"/gone/region", stands} {
		var log bytes.Buffer
		r := newReaper(func(context.Context, []string, int) error { return errors.New("cannot") }, func(string) {}, slog.New(slog.NewTextHandler(&log, nil)))
		r.reap([]machine.Job{{Name: "a", Path: path, UID: 7, Processes: []machine.Process{{State: machine.Dead}}}})
		r.wait.Wait()
		expect.Equal(t, strings.Contains(log.String(), "could not be returned"), path == stands, path)
		r.close()
	}
}

// After a quiet moment a user's dead are returned at once, a few times in a row. Where processes die all
// the time, the user's reaping has its part of the time, and no more.
func TestReapDueAfter(t *testing.T) {
	const took = 10 * time.Millisecond
	begin := time.Unix(1e9, 0)
	now, atOnce := begin, 0
	due := reapDueAfter(time.Time{}, now, took)
	for ; !now.Before(due); due = reapDueAfter(due, now, took) {
		atOnce++
	}
	want := int(reapAhead / (reapRest * took))
	expect.Equal(t, atOnce, want, "at once, not")
	for range 1000 {
		now = due
		due = reapDueAfter(due, now, took)
	}
	span := now.Sub(begin)
	expect.True(t, span >= 1000*reapRest*took, "1000 that take", took, "within", span)
	if got := reapDueAfter(now, now, reapTimeout-1); got != now.Add(maxReapRest) {
		t.Errorf("after a long one the next is due in %v", got.Sub(now))
	}
	if got := reapDueAfter(now, now, reapTimeout); got != now.Add(reapRest*reapTimeout) {
		t.Errorf("after one that had to be ended the next is due in %v", got.Sub(now))
	}
}

// What a user has in hand is used up by one after the other, also where a look comes in between.
func TestReaperCountsWhatIsInHand(t *testing.T) {
	r := newReaper(func(context.Context, []string, int) error { return nil }, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer r.close()
	in := time.Now().Add(-reapAhead / 2)
	r.due[7], r.due[8] = in, time.Now().Add(-2*reapAhead)
	r.reap(nil)
	_, kept := r.due[8]
	expect.True(t, !kept && r.due[7] == in, r.due)
}
