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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ration/internal/job"
	"ration/internal/termtext"
)

// Jobs with sleep_after that are not used sleep for the first user in the queue, as those of one user do for ration run
// --wait. The service chooses them, and asks the process of each (IdleCommand), which has the rights of the job's user.

const (
	// answerTime is how long a job that was asked counts as one that falls asleep.
	answerTime = 30 * time.Second
	// askPause is how long a job is left alone that was asked.
	askPause = time.Minute
	// askOthers is how long other jobs come first after a job was asked. It may be one that cannot sleep, or whose user
	// prevents that: two of those, asked in turns, would keep all others from being asked.
	askOthers = time.Hour
	// maxReport bounds what a process may write in a second: its user can make it write anything.
	maxReport = 1 << 10
)

// idleProcess is a process that puts a job to sleep.
type idleProcess struct {
	idleJob
	path    string // of the job's region
	cancel  context.CancelFunc
	stopped bool          // cancel was called; of sleepIdle alone
	ask     chan struct{} // has a value if it is to be asked to make room
	unused  atomic.Int64  // Unix nanoseconds since when the job is unused, as it says; 0 if it is used

	cannot   string       // why the job could not be put to sleep, as it says; of Write alone, as the others below
	onCannot func(string) // is called when cannot changes
	wrote    int          // bytes, since second
	second   time.Time
}

// ReportUnused returns a function that writes since when a job is unused, and why it cannot sleep, for the service.
func ReportUnused(out io.Writer) func(time.Time, string) {
	last := ""
	return func(since time.Time, cannot string) {
		unused := int64(0)
		if !since.IsZero() {
			unused = since.UnixNano()
		}
		line := fmt.Sprintln(unused, termtext.Printable(cannot[:min(len(cannot), maxReport/4)]))
		if line != last {
			last = line
			_, _ = io.WriteString(out, line) // if this fails, the job is not asked to make room
		}
	}
}

// Write reads what the process has written: a time in a line, and after it a text. It fails if that is too much.
func (p *idleProcess) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.second) > time.Second {
		p.wrote, p.second = 0, now
	}
	if p.wrote += len(b); p.wrote > maxReport {
		return 0, errors.New("too many lines")
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	unused, cannot, _ := strings.Cut(string(lines[len(lines)-1]), " ")
	since, err := strconv.ParseInt(unused, 10, 64)
	if err != nil {
		since, cannot = 0, ""
	}
	p.unused.Store(max(since, 0))
	if cannot != p.cannot && p.onCannot != nil {
		p.onCannot(cannot)
	}
	p.cannot = cannot
	return len(b), nil
}

// forward writes a line to the process for each time it is asked, until the context or the process ends. The user decides
// whether the process reads: so the service, which asks while others wait for its locks, does not write itself.
func (p *idleProcess) forward(ctx context.Context, in io.Writer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.ask:
		}
		if _, err := io.WriteString(in, "sleep\n"); err != nil {
			return
		}
	}
}

// idleProcesses has these processes, by the paths of their regions.
type idleProcesses struct {
	mu sync.Mutex
	by map[string]*idleProcess

	// When jobs were last asked to make room, within askOthers, by the same paths: a user can end the process, and the
	// next one is asked no earlier. Guarded by the lock of lockJobs.
	asked map[string]time.Time
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
	mayAsk := func(p *idleProcess) bool {
		return p.uid != uid && p.path == job.OfUserPath(p.uid) && r.mayLend(p.uid)
	}
	idle, falling := k.idle.unused(time.Now(), mayAsk)
	if len(idle) == 0 {
		return
	}
	room := r.roomFor(uid)
	if r.unread {
		return // it is asked again
	}
	if p := k.idle.next(idle, func(uids []int) bool { return room(slices.Concat(uids, falling)) }); p != nil {
		k.idle.request(p, time.Now())
	}
}

// unused returns the processes of jobs that may be asked now, and the users whose jobs were asked and may be falling asleep.
func (s *idleProcesses) unused(now time.Time, mayAsk func(*idleProcess) bool) (idle []*idleProcess, falling []int) {
	maps.DeleteFunc(s.asked, func(_ string, at time.Time) bool { return now.Sub(at) >= askOthers })
	for path, p := range s.all() {
		if !mayAsk(p) {
			continue
		}
		if asked := now.Sub(s.asked[path]); asked < answerTime {
			falling = append(falling, p.uid)
		} else if since := p.unused.Load(); asked >= askPause && since > 0 && now.Sub(time.Unix(0, since)) >= job.YieldAfter(p.after) {
			idle = append(idle, p)
		}
	}
	return idle, falling
}

// request asks a process to put its job to sleep. It does not wait: a process that has not read an earlier request gets no
// second one.
func (s *idleProcesses) request(p *idleProcess, now time.Time) {
	if s.asked == nil {
		s.asked = map[string]time.Time{}
	}
	s.asked[p.path] = now
	select {
	case p.ask <- struct{}{}:
	default:
	}
}

// next returns the process of the job that is to sleep next so that enough is true; nil if there is none. As few as
// necessary sleep, and none if all of them would not be enough. Those that were asked come last. Of the others, the job that
// has been unused longest is the first.
func (s *idleProcesses) next(idle []*idleProcess, enough func(uids []int) bool) *idleProcess {
	slices.SortFunc(idle, func(a, b *idleProcess) int {
		return cmp.Or(s.asked[a.path].Compare(s.asked[b.path]), cmp.Compare(a.unused.Load(), b.unused.Load()), cmp.Compare(a.uid, b.uid))
	})
	enoughFrom := func(all []*idleProcess) bool {
		var uids []int
		for _, p := range all {
			uids = append(uids, p.uid)
		}
		return enough(uids)
	}
	if enough(nil) || !enoughFrom(idle) {
		return nil
	}
	return job.Yielding(idle, enoughFrom)[0]
}
