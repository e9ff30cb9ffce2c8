package machine

import (
	"context"
	"iter"
	"time"

	"ration/internal/scan"
)

// watchInterval is how often Watch reads the machine where nothing is due earlier.
const watchInterval = time.Second

// Watch follows the machine until the context ends. It returns first the events that the jobs still know,
// and then what happens; after the events of each read, and when anything else has changed, it returns one
// of kind Changed. Each event has the Machine as it was read. An error says why the jobs could not be
// listed: Watch goes on, and returns the next one when the reason changes.
//
// Watch reads a job again only if it has changed. Of the jobs that have ended, Machine has the latest few
// of each user, and counts the others (Hidden).
func Watch(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		wake := make(chan struct{}, 1)
		s := newScanner(scan.Options{Background: true, Wake: func() {
			select {
			case wake <- struct{}{}:
			default: // it is going to wake up
			}
		}})
		defer s.Close()
		failed := ""
		for ctx.Err() == nil {
			r, err := s.Scan(true)
			switch {
			case err == nil:
				failed = ""
			case err.Error() != failed:
				failed = err.Error()
				if !yield(Event{}, err) {
					return
				}
			}
			if r.Changed {
				r.Events = append(r.Events, Event{Kind: Changed, Time: time.Now().UTC()})
			}
			for _, e := range r.Events {
				e.Machine = r.Machine
				if !yield(e, nil) {
					return
				}
			}
			next := watchInterval
			if due := s.Deferred(); !due.IsZero() {
				next = min(next, time.Until(due))
			}
			select {
			case <-ctx.Done():
			case <-wake:
			case <-time.After(next):
			}
		}
	}
}
