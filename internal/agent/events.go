package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"ration/internal/connlimit"
	"ration/internal/proc"
	"ration/machine"
)

// maxEvents bounds the events that are kept, for all jobs together.
const maxEvents = 4096

// eventRing keeps the latest events, each only once. When it is full, it drops the oldest event of
// the user with the most events, so that one user's thousands of events cannot push out another
// user's. A user and the UIDs delegated to that user count as one account (proc.Account).
type eventRing struct {
	mu     sync.Mutex
	events []numberedEvent // oldest first
	next   uint64          // number of the next event
	byUser map[int]int     // number of kept events by account
	known  map[machine.EventID]bool
}

type numberedEvent struct {
	number  uint64 // counts up as events are added
	account int
	event   machine.Event
}

func newEventRing() *eventRing {
	return &eventRing{byUser: map[int]int{}, known: map[machine.EventID]bool{}}
}

// add adds events, and returns those that it did not know.
func (r *eventRing) add(happened []machine.Event) (fresh []machine.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range happened {
		id := happened[i].ID()
		if r.known[id] {
			continue
		}
		r.known[id] = true
		account := accountOf(happened[i].UID)
		r.byUser[account]++
		r.events = append(r.events, numberedEvent{r.next, account, happened[i]})
		r.next++
		fresh = append(fresh, happened[i])
	}
	r.drop(len(r.events) - maxEvents)
	return fresh
}

// drop drops that many events. The caller holds r.mu.
func (r *eventRing) drop(over int) {
	if over <= 0 {
		return
	}
	drop := map[int]int{} // number of events to drop, by account
	for range over {
		account := mostOf(r.byUser)
		drop[account]++
		if r.byUser[account]--; r.byUser[account] == 0 {
			delete(r.byUser, account)
		}
	}
	r.events = slices.DeleteFunc(r.events, func(e numberedEvent) bool {
		if drop[e.account] == 0 {
			return false
		}
		drop[e.account]--
		delete(r.known, e.event.ID())
		return true
	})
}

// since returns the events with this number and higher, and the number of the next event.
func (r *eventRing) since(number uint64) (events []machine.Event, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.events, number, func(e numberedEvent, n uint64) int { return cmp.Compare(e.number, n) })
	for _, e := range r.events[at:] {
		events = append(events, e.event)
	}
	return events, r.next
}

// accountOf is a variable for tests.
var accountOf = proc.Account

// mostOf returns the account with the most events. If several have the same number, it returns the
// highest UID.
func mostOf(byUser map[int]int) (uid int) {
	most := 0
	for u, n := range byUser {
		if n > most || n == most && u > uid {
			uid, most = u, n
		}
	}
	return uid
}

// maxSeen bounds the events that a Seen remembers. It is twice as many as an agent keeps.
const maxSeen = 2 * maxEvents

// Seen remembers the events that a client has seen: an agent that starts again sends them again.
type Seen struct {
	known map[machine.EventID]bool
	order []machine.EventID // in the order in which they were seen
}

// Add reports whether an event is new.
func (s *Seen) Add(id machine.EventID) bool {
	if s.known[id] {
		return false
	}
	if s.known == nil {
		s.known = map[machine.EventID]bool{}
	}
	s.known[id] = true
	if s.order = append(s.order, id); len(s.order) > maxSeen {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
	return true
}

// maxLines bounds the lines that one user's jobs get in the log per logSpan: a user can start and
// end any number of jobs and processes.
const (
	logSpan  = time.Minute
	maxLines = 120
)

// eventLog writes events to a log.
type eventLog struct {
	log   *slog.Logger
	own   int // the agent's own user, which has no such bound
	lines *connlimit.Lines
}

func newEventLog(log *slog.Logger, own int) eventLog {
	return eventLog{log, own, connlimit.NewLines(maxLines, logSpan, func(owner string, n int) {
		log.Warn(fmt.Sprintf("%d events of jobs of %s were not written to the log: there were more than %d in %v", n, owner, maxLines, logSpan),
			"owner", owner, "left_out", n)
	})}
}

// begin must be called before the events of each scan.
func (l *eventLog) begin(now time.Time) { l.lines.Flush(now) }

// end must be called after the last event.
func (l *eventLog) end() { l.lines.Close() }

// write logs an event, unless its account has used up its lines.
func (l *eventLog) write(e *machine.Event, now time.Time) (written bool) {
	if e.Kind == machine.RequestRefused { // a program that retries forever must not fill the log
		return false
	}
	if e.UID != l.own && !l.lines.Allow(accountOf(e.UID), e.Owner, now) {
		return false
	}
	level := slog.LevelInfo
	switch e.Kind {
	case machine.ProcessDied, machine.ProcessesStopped, machine.JobCannotSleep, machine.GPUFailed:
		level = slog.LevelWarn
	}
	l.log.Log(context.Background(), level, e.Text, "event", e.Kind, "job", e.Job, "path", e.Path, "owner", e.Owner, "at", e.Time)
	return true
}

// record logs and counts the events that no earlier agent has logged, and enters them into the
// journal. It saves the journal after each line of the log, before it writes the next line.
func (a *Agent) record(happened []machine.Event) {
	now := time.Now()
	a.log.begin(now)
	fresh := a.journal.unlogged(happened)
	if len(fresh) == 0 {
		return
	}
	m := a.Machine()
	jobs := map[machine.JobID]*machine.Job{}
	for i := range m.Jobs {
		jobs[m.Jobs[i].ID()] = &m.Jobs[i]
	}
	counted := a.count(fresh, jobs)
	for i := range fresh {
		e := &fresh[i]
		atStep("log")
		written := a.log.write(e, now)
		if a.journal.put(entryOf(e, jobs[e.JobID()])); written {
			a.saveJournal()
		}
	}
	for _, e := range counted {
		a.journal.put(e)
	}
	a.saveJournal()
}

// count updates the counters of events. It returns journal entries with the number of refusals of
// each job.
func (a *Agent) count(fresh []machine.Event, jobs map[machine.JobID]*machine.Job) (entries []entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refused := map[*machine.Job]uint64{}
	for i := range fresh {
		e := &fresh[i]
		if j := jobs[e.JobID()]; e.Kind == machine.RequestRefused && j != nil {
			refused[j]++
		} else {
			a.stats.Events[e.Kind]++
		}
	}
	for j, seen := range refused {
		n, e := a.journal.count(j, seen)
		a.stats.Events[machine.RequestRefused] += n
		entries = append(entries, e)
	}
	return entries
}

// saveJournal saves the journal. It warns once if that starts to fail.
func (a *Agent) saveJournal() {
	err := a.journal.save(a.Machine())
	if err != nil && !a.unsaved {
		a.opts.Log.Warn("events from now on may be logged again by the next agent", "error", err)
	}
	a.unsaved = err != nil
}
