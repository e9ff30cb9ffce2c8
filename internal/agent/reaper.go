package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"ration/machine"
)

const (
	reapGap     = time.Second     // between two processes for one job
	reapTimeout = 5 * time.Second // after which such a process is ended
	maxReaping  = 4               // at once
	maxReapers  = 4096            // jobs of which it is known when they were last reaped
)

// reaper has what dead processes hold returned to their jobs. Who maps a region follows what it
// says; so this is done by a process of the user to whom the region belongs, which that user
// could start as well.
type reaper struct {
	do   func(ctx context.Context, path string, uid int) error
	hint func(folder string)
	log  *slog.Logger

	mu     sync.Mutex
	busy   map[string]bool
	last   map[string]time.Time // by path
	failed map[string]bool      // by path: it was logged
	wait   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

func newReaper(do func(context.Context, string, int) error, hint func(string), log *slog.Logger) *reaper {
	ctx, cancel := context.WithCancel(context.Background())
	return &reaper{do: do, hint: hint, log: log, busy: map[string]bool{}, last: map[string]time.Time{}, failed: map[string]bool{}, ctx: ctx, cancel: cancel}
}

// reap begins for the jobs that have dead processes, and does not wait.
func (r *reaper) reap(ctx context.Context, jobs []machine.Job) {
	if r.do == nil || ctx.Err() != nil {
		return
	}
	for i := range jobs {
		j := &jobs[i]
		if j.Name == "" || j.UID < 0 || j.Error != "" || !hasDead(j) {
			continue // without a name its path is one of another place, such as a container
		}
		r.begin(j.Path, j.UID)
	}
}

func hasDead(j *machine.Job) bool {
	for i := range j.Processes {
		if j.Processes[i].State == machine.Dead {
			return true
		}
	}
	return false
}

func (r *reaper) begin(path string, uid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[path] || len(r.busy) >= maxReaping || time.Since(r.last[path]) < reapGap {
		return
	}
	if len(r.last) >= maxReapers {
		clear(r.last)
		clear(r.failed)
	}
	r.busy[path] = true
	r.wait.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, reapTimeout)
		defer cancel()
		err := r.do(ctx, path, uid)
		r.mu.Lock()
		news := err != nil && !r.failed[path] && r.ctx.Err() == nil
		delete(r.busy, path)
		r.last[path], r.failed[path] = time.Now(), err != nil
		r.mu.Unlock()
		if news {
			r.log.Warn("what dead processes hold could not be returned; the job's next request that needs it does that", "path", path, "error", err)
		}
		r.hint(filepath.Dir(path))
	})
}

// close ends those that are under way: half done is as good as not begun.
func (r *reaper) close() {
	r.cancel()
	r.wait.Wait()
}
