package policy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/job"
)

// Jobs with sleep_after that are not used sleep for the first user in the queue, as those of one user do for ration run
// --wait. The service chooses them, and asks the process of each (IdleCommand), which has the rights of the job's user.

const (
	// answerTime is how long a job that was asked counts as one that falls asleep.
	answerTime = 30 * time.Second
	// askPause is how long a job is left alone that was asked.
	askPause = time.Minute
	// maxReport bounds what a process may write in a second: its user can make it write anything.
	maxReport = 1 << 10
)

// idleProcess is a process that puts a job to sleep.
type idleProcess struct {
	idleJob
	path   string // of the job's region
	cancel context.CancelFunc
	in     atomic.Pointer[io.WriteCloser] // its input; nil before it is started
	unused atomic.Int64                   // Unix nanoseconds since when the job is unused, as it says; 0 if it is used
	asked  time.Time                      // when it was last asked to make room; guarded by the lock of lockJobs

	wrote  int // bytes, since second; of Write alone
	second time.Time
}

// ReportUnused returns a function that writes since when a job is unused, for the service.
func ReportUnused(out io.Writer) func(time.Time) {
	last := int64(-1)
	return func(since time.Time) {
		now := int64(0)
		if !since.IsZero() {
			now = since.UnixNano()
		}
		if now != last {
			last = now
			_, _ = fmt.Fprintln(out, now) // without it, the job is not asked to make room
		}
	}
}

// Write reads what the process has written: a time in a line. It fails if that is too much.
func (p *idleProcess) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.second) > time.Second {
		p.wrote, p.second = 0, now
	}
	if p.wrote += len(b); p.wrote > maxReport {
		return 0, errors.New("too many lines")
	}
	lines := bytes.Fields(b)
	if len(lines) > 0 {
		since, err := strconv.ParseInt(string(lines[len(lines)-1]), 10, 64)
		if err != nil {
			since = 0
		}
		p.unused.Store(max(since, 0))
	}
	return len(b), nil
}

// idleProcesses has these processes, by the paths of their regions.
type idleProcesses struct {
	mu sync.Mutex
	by map[string]*idleProcess
}

func (s *idleProcesses) all() map[string]*idleProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.by)
}

func (s *idleProcesses) set(path string, p *idleProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]*idleProcess{}
	}
	if s.by[path] = p; p == nil {
		delete(s.by, path)
	}
}

// makeRoom asks the process of a job to put it to sleep, if that makes room for a user. The caller holds the lock of
// lockJobs.
func (k *keeper) makeRoom(r *rations, uid int) {
	now := time.Now()
	var falling []int
	var idle []*idleProcess
	for path, p := range k.idle.all() {
		if p.uid == uid || path != job.OfUserPath(p.uid) || !r.mayLend(p.uid) || p.in.Load() == nil {
			continue
		}
		if asked := now.Sub(p.asked); asked < answerTime {
			falling = append(falling, p.uid)
		} else if since := p.unused.Load(); asked >= askPause && since > 0 && now.Sub(time.Unix(0, since)) >= job.YieldAfter(p.after) {
			idle = append(idle, p)
		}
	}
	if len(idle) == 0 {
		return
	}
	room := r.roomFor(uid)
	if p := longestUnused(idle, func(uids []int) bool { return room(slices.Concat(uids, falling)) }); p != nil {
		p.asked = now
		_, _ = io.WriteString(*p.in.Load(), "sleep\n") // a process that has ended makes no room
	}
}

// longestUnused returns the process of the job that is to sleep next so that enough is true; nil if there is none. As few
// as necessary sleep, and none if all of them would not be enough.
func longestUnused(idle []*idleProcess, enough func(uids []int) bool) *idleProcess {
	slices.SortFunc(idle, func(a, b *idleProcess) int {
		return cmp.Or(cmp.Compare(a.unused.Load(), b.unused.Load()), cmp.Compare(a.uid, b.uid))
	})
	uids := func(all []*idleProcess) (out []int) {
		for _, p := range all {
			out = append(out, p.uid)
		}
		return out
	}
	if enough(nil) || !enough(uids(idle)) {
		return nil
	}
	for i := len(idle) - 1; i >= 0; i-- { // those that were used last stay awake
		if rest := slices.Delete(slices.Clone(idle), i, i+1); enough(uids(rest)) {
			idle = rest
		}
	}
	return idle[0]
}
