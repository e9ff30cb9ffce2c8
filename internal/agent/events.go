package agent

import (
	"sync"

	"ration/machine"
)

// maxEvents is how many events are kept, of all jobs together.
const maxEvents = 4096

// eventRing keeps the latest events, and hands them to those who follow. None is in it twice,
// however often it was noticed.
type eventRing struct {
	mu     sync.Mutex
	events []machine.Event // the earliest first
	first  uint64          // number of events[0]
	known  map[machine.EventID]bool
	more   chan struct{} // closed when there are more
}

func newEventRing() *eventRing {
	return &eventRing{known: map[machine.EventID]bool{}, more: make(chan struct{})}
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
		fresh = append(fresh, happened[i])
	}
	if len(fresh) == 0 {
		return nil
	}
	r.events = append(r.events, fresh...)
	if over := len(r.events) - maxEvents; over > 0 {
		for i := range over {
			delete(r.known, r.events[i].ID())
		}
		r.events = append([]machine.Event(nil), r.events[over:]...)
		r.first += uint64(over)
	}
	close(r.more)
	r.more = make(chan struct{})
	return fresh
}

// since returns the events from a number on, the number of the next, and a channel that is closed
// when there are more.
func (r *eventRing) since(number uint64) (events []machine.Event, next uint64, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := min(max(number, r.first)-r.first, uint64(len(r.events)))
	return r.events[at:len(r.events):len(r.events)], r.first + uint64(len(r.events)), r.more
}
