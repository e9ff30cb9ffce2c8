package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ration/internal/agent/privsep"
	"ration/internal/safepath"
	"ration/machine"
)

const (
	reapTimeout = 5 * time.Second // a ration reap that runs longer is killed
	maxReaping  = privsep.MaxReaping
	maxReapJobs = privsep.MaxPaths
	// After a ration reap, its user must wait reapRest times as long as it took, which is about 10
	// ms, before the next one starts, but at most maxReapRest. (After one that was killed, the wait
	// has no maximum.) After a quiet time, reapAhead of this wait is forgiven, because processes
	// are often killed one after the other.
	reapRest    = 10
	maxReapRest = time.Second / 2
	reapAhead   = 2 * time.Second
	// If dead processes remain, the job is retried after firstRetry. The time doubles with each
	// retry, up to lastRetry.
	firstRetry, lastRetry = time.Second, time.Minute
)

// reaper returns the memory of dead processes to their jobs. It never maps a region itself: a
// region can mislead a process that maps it. So it runs ration reap as the region's own user, which
// that user could do too.
type reaper struct {
	do   func(ctx context.Context, paths []string, uid int) error
	hint func(folder string)
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	busy  map[int]bool      // accounts with a ration reap in progress
	due   map[int]time.Time // by account: when the next ration reap may start
	tried map[string]retry  // by path: jobs that had dead processes at the last scan
	ended map[string]bool   // by folder of such jobs: a process has ended since the last try began

	again   *time.Timer // wakes the agent for jobs that have to wait
	againAt time.Time
}

// retry is when to retry a job.
type retry struct {
	dead string // the dead processes of the last try
	due  time.Time
	wait time.Duration
}

func newReaper(do func(context.Context, []string, int) error, hint func(string), log *slog.Logger) *reaper {
	ctx, cancel := context.WithCancel(context.Background())
	return &reaper{do: do, hint: hint, log: log, ctx: ctx, cancel: cancel, busy: map[int]bool{}, due: map[int]time.Time{}, tried: map[string]retry{}, ended: map[string]bool{}}
}

// reap starts ration reap for jobs with dead processes. It does not wait for it.
func (r *reaper) reap(jobs []machine.Job) {
	if r.do == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	dead, ended, byUser := map[string]retry{}, map[string]bool{}, map[int][]string{}
	for i := range jobs {
		j := &jobs[i]
		if j.Name == "" || j.UID < 0 || j.Error != "" {
			continue // a job without a name is elsewhere, for example in a container
		}
		t := r.tried[j.Path]
		switch which := deadOf(j); which {
		case "":
			continue
		case t.dead:
		default:
			t = retry{dead: which}
		}
		if folder := filepath.Dir(j.Path); r.ended[folder] {
			t.due, ended[folder] = time.Time{}, true
		}
		dead[j.Path] = t
		if now.Before(t.due) {
			r.wakeIn(t.due.Sub(now))
		} else if len(byUser[j.UID]) < maxReapJobs {
			byUser[j.UID] = append(byUser[j.UID], j.Path)
		}
	}
	r.tried, r.ended = dead, ended
	for uid, paths := range byUser {
		account := accountOf(uid)
		if wait := r.due[account].Sub(now); wait > 0 {
			r.wakeIn(wait)
		} else if !r.busy[account] && len(r.busy) < maxReaping {
			r.begin(paths, uid)
		} // otherwise it starts after a running one has ended
	}
	for account, due := range r.due {
		if now.Sub(due) > reapAhead {
			delete(r.due, account)
		}
	}
}

// hasEnded records that a process of the job in a folder has ended. A process whose lock is free
// may still be ending, while the driver frees its memory. ration reap returns nothing before it has
// ended, so the job must be tried again now.
func (r *reaper) hasEnded(folder string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.do != nil { // with no do, nothing would remove the entry
		r.ended[folder] = true
	}
}

// wakeIn makes the agent scan after a while. The caller holds r.mu.
func (r *reaper) wakeIn(wait time.Duration) {
	at := time.Now().Add(wait)
	if r.again != nil {
		if time.Now().Before(r.againAt) && r.againAt.Before(at) {
			return
		}
		r.again.Stop()
	}
	r.again, r.againAt = time.AfterFunc(wait, func() { r.hint("") }), at
}

// deadOf returns a text that identifies the dead processes of a job; "" for none.
func deadOf(j *machine.Job) string {
	var out strings.Builder
	for i := range j.Processes {
		if p := &j.Processes[i]; p.State == machine.Dead {
			fmt.Fprintf(&out, "%d:%d ", p.Slot, p.Joined.UnixNano())
		}
	}
	return out.String()
}

// begin starts ration reap for jobs of one user. The caller holds r.mu.
func (r *reaper) begin(paths []string, uid int) {
	account := accountOf(uid)
	r.busy[account] = true
	for _, path := range paths {
		delete(r.ended, filepath.Dir(path))
	}
	r.wait.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, reapTimeout)
		defer cancel()
		began := time.Now()
		err := r.do(ctx, paths, uid)
		now := time.Now()
		r.mu.Lock()
		delete(r.busy, account)
		r.due[account] = reapDueAfter(r.due[account], now, now.Sub(began))
		news := false
		for _, path := range paths { // in case dead processes remain
			t := r.tried[path]
			news = news || t.wait == 0
			t.wait = min(max(2*t.wait, firstRetry), lastRetry)
			t.due = now.Add(t.wait)
			r.tried[path] = t
		}
		r.mu.Unlock()
		// A job that has ended meanwhile has returned all of its memory.
		if err != nil && news && r.ctx.Err() == nil && slices.ContainsFunc(paths, safepath.Exists) {
			r.log.Warn("the memory of dead processes could not be returned to the job; its next request that needs the memory will do that", "paths", paths, "error", err)
		}
		for _, path := range paths {
			r.hint(filepath.Dir(path))
		}
	})
}

// reapDueAfter returns when a user may have the next ration reap, given when the last one was due
// and how long it took. If it had to be killed, the user stopped it or the region did not respond.
// It blocked other users' requests all that time, so the wait has no maximum.
func reapDueAfter(due, now time.Time, took time.Duration) time.Time {
	rest := reapRest * took
	if took < reapTimeout {
		rest = min(rest, maxReapRest)
	}
	if earliest := now.Add(-reapAhead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(rest)
}

// close kills each ration reap that runs. It may be killed at any point without harm.
func (r *reaper) close() {
	r.cancel()
	r.wait.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.again != nil {
		r.again.Stop()
	}
}
