package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/agent/privsep"
	"ration/internal/humanfmt"
	"ration/machine"
)

const (
	stopTimeout = 5 * time.Second  // for one request to end processes
	stopRetry   = 10 * time.Second // for a process that could not be ended
)

// stopper ends processes of jobs that are over a limit of the operator's, if the operator has chosen so
// (--on-escape=stop). For a job that is over its limit:
//
//	at once                nothing but an event, which says when
//	after grace            SIGTERM to every process that puts the job over its limit
//	after twice grace      SIGKILL to every such process
//
// The time begins anew only after the job was within its limit for grace, so short breaks gain nothing, and
// a new process gets no grace of its own.
type stopper struct {
	do    func(ctx context.Context, s privsep.Stop) (signalled []int, err error)
	grace time.Duration
	hint  func(folder string)
	log   *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	over   map[machine.JobID]*overrun
	events []machine.Event // that take has not returned yet
}

// overrun is a job that is, or was a moment ago, over its limit.
type overrun struct {
	since, last time.Time
	killing     bool                         // the present stage is SIGKILL
	tried       map[privsep.Target]time.Time // in this stage: when to try again; zero for a process that got the signal
	busy        bool
	failed      string // the error that was logged last
}

// maxTried bounds overrun.tried: a job can start processes without end.
const maxTried = 1024

func newStopper(do func(context.Context, privsep.Stop) ([]int, error), grace time.Duration, hint func(string), log *slog.Logger) *stopper {
	ctx, cancel := context.WithCancel(context.Background())
	return &stopper{do: do, grace: grace, hint: hint, log: log, ctx: ctx, cancel: cancel, over: map[machine.JobID]*overrun{}}
}

// check starts what is due for the jobs that are over their limits. It does not wait for it.
func (s *stopper) check(escapes []machine.Escape, now time.Time) {
	if s.do == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range escapes {
		e := &escapes[i]
		o := s.over[e.Job]
		if o == nil {
			o = &overrun{since: now, tried: map[privsep.Target]time.Time{}}
			s.over[e.Job] = o
			s.announce(e, now)
		}
		o.last = now
		if now.Sub(o.since) < s.grace || o.busy {
			continue
		}
		if kill := now.Sub(o.since) >= 2*s.grace; kill != o.killing || len(o.tried) > maxTried {
			o.killing = kill
			clear(o.tried)
		}
		if due := o.due(e, now); len(due) > 0 {
			s.begin(o, *e, due)
		}
	}
	for id, o := range s.over {
		if now.Sub(o.last) >= s.grace && !o.busy {
			delete(s.over, id)
		}
	}
}

// due returns what to ask for: a request for each user, with the processes that have not got the signal.
func (o *overrun) due(e *machine.Escape, now time.Time) (out []privsep.Stop) {
	for _, p := range e.Processes {
		t := privsep.Target{PID: p.PID, Started: p.Started}
		if retry, tried := o.tried[t]; tried && (retry.IsZero() || now.Before(retry)) {
			continue
		}
		i := slices.IndexFunc(out, func(s privsep.Stop) bool { return s.UID == p.UID })
		if i < 0 {
			i, out = len(out), append(out, privsep.Stop{Region: e.Job.Path, UID: p.UID, Kill: o.killing})
		}
		if len(out[i].Processes) < privsep.MaxStop { // the next scan is for the others
			out[i].Processes = append(out[i].Processes, t)
		}
	}
	return out
}

// begin ends processes of a job. The caller holds s.mu.
func (s *stopper) begin(o *overrun, e machine.Escape, due []privsep.Stop) {
	o.busy = true
	s.wait.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, stopTimeout)
		defer cancel()
		for _, request := range due {
			pids, err := s.do(ctx, request)
			s.done(o, &e, request, pids, err)
		}
		s.mu.Lock()
		o.busy = false
		s.mu.Unlock()
		s.hint("")
	})
}

// done records what came of a request.
func (s *stopper) done(o *overrun, e *machine.Escape, request privsep.Stop, pids []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, t := range request.Processes {
		if o.tried[t] = now.Add(stopRetry); slices.Contains(pids, t.PID) {
			o.tried[t] = time.Time{}
		}
	}
	if len(pids) > 0 {
		signal := unix.SignalName(request.Signal())
		s.add(e, now, signal, pids, fmt.Sprintf("job %s was over its limit by %s, and the agent has sent %s to %s", e.Title, humanfmt.Bytes(e.Over), signal, processes(pids)))
	}
	if err == nil || s.ctx.Err() != nil {
		return
	}
	if text := err.Error(); text != o.failed {
		o.failed = text
		s.log.Warn("processes of a job over its limit could not be ended (end them yourself)", "job", e.Title, "path", e.Job.Path, "error", err)
	}
}

// announce adds the event that a job is over its limit. The caller holds s.mu.
func (s *stopper) announce(e *machine.Escape, now time.Time) {
	pids := make([]int, len(e.Processes))
	for i := range pids {
		pids[i] = e.Processes[i].PID
	}
	s.add(e, now, "", pids, fmt.Sprintf("job %s is over its limit by %s, and the agent will end its processes in %v", e.Title, humanfmt.Bytes(e.Over), s.grace))
}

// add adds an event. The caller holds s.mu.
func (s *stopper) add(e *machine.Escape, now time.Time, signal string, pids []int, text string) {
	s.events = append(s.events, e.Event(now, machine.Stop{Time: now.UTC(), Signal: signal, PIDs: pids, Device: e.Device, Over: e.Over}, text))
}

// processes names processes in a sentence.
func processes(pids []int) string {
	const most = 8
	texts := make([]string, 0, most+1)
	for _, pid := range pids[:min(len(pids), most)] {
		texts = append(texts, strconv.Itoa(pid))
	}
	if more := len(pids) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return humanfmt.Plural(len(pids), "process", "processes") + " (" + strings.Join(texts, ", ") + ")"
}

// take returns the events since the last call.
func (s *stopper) take() (out []machine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.events = s.events, nil
	return out
}

// close waits until no request is in progress.
func (s *stopper) close() {
	s.cancel()
	s.wait.Wait()
}
