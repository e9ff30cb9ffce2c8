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

// eventRing keeps the latest events, and hands them to those who follow. None is in it twice,
// however often it was noticed. Where there are too many, the earliest go of the user who has most:
// who makes thousands, which takes no more than a few words in a region, hides no other's. The UIDs that
// are lent to a user are one (proc.Account).
type eventRing struct {
	mu     sync.Mutex
	events []numberedEvent // the earliest first
	next   uint64          // number of the event that comes next
	byUser map[int]int     // how many of events are of each user's jobs, by account
	known  map[machine.EventID]bool
	more   chan struct{} // closed when there are more
}

type numberedEvent struct {
	number  uint64 // in the order in which they were added
	account int    // by which it counts
	event   machine.Event
}

func newEventRing() *eventRing {
	return &eventRing{byUser: map[int]int{}, known: map[machine.EventID]bool{}, more: make(chan struct{})}
}

// add adds events, and returns those that were not there.
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
	if len(fresh) == 0 {
		return nil
	}
	r.drop(len(r.events) - maxEvents)
	close(r.more)
	r.more = make(chan struct{})
	return fresh
}

// drop drops so many events. The lock is held.
func (r *eventRing) drop(over int) {
	if over <= 0 {
		return
	}
	drop := map[int]int{} // by account
	for range over {
		uid := mostOf(r.byUser)
		drop[uid]++
		if r.byUser[uid]--; r.byUser[uid] == 0 {
			delete(r.byUser, uid)
		}
	}
	kept := make([]numberedEvent, 0, maxEvents) // a new one: followers read the old one
	for _, e := range r.events {
		if drop[e.account] > 0 {
			drop[e.account]--
			delete(r.known, e.event.ID())
		} else {
			kept = append(kept, e)
		}
	}
	r.events = kept
}

// accountOf is another one in tests.
var accountOf = proc.Account

// mostOf returns the user who has most, the one with the highest number of several.
func mostOf(byUser map[int]int) (uid int) {
	most := 0
	for u, n := range byUser {
		if n > most || n == most && u > uid {
			uid, most = u, n
		}
	}
	return uid
}

// since returns the events from a number on, the number of the next, and a channel that is closed
// when there are more.
func (r *eventRing) since(number uint64) (events []machine.Event, next uint64, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.events, number, func(e numberedEvent, n uint64) int { return cmp.Compare(e.number, n) })
	for _, e := range r.events[at:] {
		events = append(events, e.event)
	}
	return events, r.next, r.more
}

// A user can have any number of jobs start and end, and processes die, or say so. In so long so many
// lines of the log are for one user's.
const (
	logSpan  = time.Minute
	maxLines = 120
)

// eventLog writes events to a log.
type eventLog struct {
	log   *slog.Logger
	own   int               // the user of this process, who is without bounds
	lines map[int]*logLines // by account
}

// logLines is what the log has of one user.
type logLines struct {
	owner   string
	since   time.Time
	written int
	left    int // that were not written
}

// begin is called before the events of a look, at a time.
func (l *eventLog) begin(now time.Time) {
	for uid, u := range l.lines {
		if now.Sub(u.since) >= logSpan {
			delete(l.lines, uid)
			l.writeLeft(u)
		}
	}
}

// end is called when there will be no more.
func (l *eventLog) end() {
	for _, u := range l.lines {
		l.writeLeft(u)
	}
}

// writeLeft says how many events of a user were not written.
func (l *eventLog) writeLeft(u *logLines) {
	if u.left > 0 {
		l.log.Warn(fmt.Sprintf("%d events of jobs of %s were not written to the log: there were more than %d in %v", u.left, u.owner, maxLines, logSpan),
			"owner", u.owner, "left_out", u.left)
	}
}

// write writes an event, at a time, unless the log has no line for it.
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

// note hands out the events of a look, and counts and logs those that no agent before this one has. Each
// line of the log is remembered before the next is written, and what was counted after what was seen.
func (a *Agent) note(happened []machine.Event) {
	now := time.Now()
	a.log.begin(now)
	fresh := a.told.untold(a.events.add(happened))
	if len(fresh) == 0 {
		return
	}
	jobs := map[machine.JobID]*machine.Job{}
	m := a.Machine()
	for i := range m.Jobs {
		jobs[m.Jobs[i].ID()] = &m.Jobs[i]
	}
	counted := a.count(fresh, jobs)
	for i := range fresh {
		e := &fresh[i]
		atStep("log")
		written := a.log.write(e, now)
		if a.told.put(factOf(e, jobs[e.JobID()])); written {
			a.saveTold()
		}
	}
	for _, fact := range counted {
		a.told.put(fact)
	}
	a.saveTold()
}

// count counts events, and returns what is to be remembered of that.
func (a *Agent) count(fresh []machine.Event, jobs map[machine.JobID]*machine.Job) (facts []toldLine) {
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
		n, fact := a.told.count(j, seen)
		a.stats.Events[machine.RequestRefused] += n
		facts = append(facts, fact)
	}
	return facts
}

// saveTold remembers what was told. Where it cannot, it says so once.
func (a *Agent) saveTold() {
	err := a.told.save(a.Machine())
	if err != nil && !a.unsaved {
		a.opts.Log.Warn("events from now on may be logged again by the next agent", "error", err)
	}
	a.unsaved = err != nil
}
