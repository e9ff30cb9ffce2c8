package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"ration/internal/proc"
	"ration/machine"
)

// maxEvents is how many events are kept, of all jobs together.
const maxEvents = 4096

// eventRing keeps the latest events, each once however often it was noticed. When there are too many, it
// drops the earliest of the user that has most, so that a user with thousands of events hides no other's. A
// user and all UIDs delegated to it count as one (proc.Account).
type eventRing struct {
	mu     sync.Mutex
	events []numberedEvent // the earliest first
	next   uint64          // number of the event that comes next
	byUser map[int]int     // how many of events each account has
	known  map[machine.EventID]bool
}

type numberedEvent struct {
	number  uint64 // in the order in which they were added
	account int
	event   machine.Event
}

func newEventRing() *eventRing {
	return &eventRing{byUser: map[int]int{}, known: map[machine.EventID]bool{}}
}

// add adds events, and returns those that are new.
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

// drop drops so many events. The lock is held.
func (r *eventRing) drop(over int) {
	if over <= 0 {
		return
	}
	drop := map[int]int{} // by account
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

// since returns the events from a number on, and the number of the next one.
func (r *eventRing) since(number uint64) (events []machine.Event, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.events, number, func(e numberedEvent, n uint64) int { return cmp.Compare(e.number, n) })
	for _, e := range r.events[at:] {
		events = append(events, e.event)
	}
	return events, r.next
}

// accountOf is replaced by tests.
var accountOf = proc.Account

// mostOf returns the account that has most; of several the one with the highest number.
func mostOf(byUser map[int]int) (uid int) {
	most := 0
	for u, n := range byUser {
		if n > most || n == most && u > uid {
			uid, most = u, n
		}
	}
	return uid
}

// maxLines bounds how many lines the log gets in logSpan for one user's jobs: a user can have any number of
// jobs start and end, and processes die.
const (
	logSpan  = time.Minute
	maxLines = 120
)

// eventLog writes events to a log.
type eventLog struct {
	log   *slog.Logger
	own   int               // the user of this process, which has no bound
	lines map[int]*logLines // by account
}

// logLines is what the log has of one account.
type logLines struct {
	owner   string
	since   time.Time
	written int
	left    int // how many were not written
}

// begin is called before the events of a scan.
func (l *eventLog) begin(now time.Time) {
	for uid, u := range l.lines {
		if now.Sub(u.since) >= logSpan {
			delete(l.lines, uid)
			l.writeLeft(u)
		}
	}
}

// end is called after the last event.
func (l *eventLog) end() {
	for _, u := range l.lines {
		l.writeLeft(u)
	}
}

// writeLeft says how many events of an account were not written.
func (l *eventLog) writeLeft(u *logLines) {
	if u.left > 0 {
		l.log.Warn(fmt.Sprintf("%d events of jobs of %s were not written to the log: there were more than %d in %v", u.left, u.owner, maxLines, logSpan),
			"owner", u.owner, "left_out", u.left)
	}
}

// write writes an event, unless its account has used up its lines.
func (l *eventLog) write(e *machine.Event, now time.Time) (written bool) {
	if e.Kind == machine.RequestRefused { // a program that tries again and again must not fill the log
		return false
	}
	if e.UID != l.own {
		account := accountOf(e.UID)
		u := l.lines[account]
		if u == nil {
			u = &logLines{owner: e.Owner, since: now}
			l.lines[account] = u
		}
		if u.written++; u.written > maxLines {
			u.left++
			return false
		}
	}
	l.log.Info(e.Text, "event", e.Kind, "job", e.Job, "path", e.Path, "owner", e.Owner, "at", e.Time)
	return true
}

// record logs and counts the events that no earlier agent has, and enters them into the journal. Each line of
// the log is saved there before the next one is written.
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

// count counts events, and returns the entries with the numbers of refusals.
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

// saveJournal saves the journal. If it cannot, it says so once.
func (a *Agent) saveJournal() {
	err := a.journal.save(a.Machine())
	if err != nil && !a.unsaved {
		a.opts.Log.Warn("events from now on may be logged again by the next agent", "error", err)
	}
	a.unsaved = err != nil
}
