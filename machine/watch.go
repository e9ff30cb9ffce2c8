package machine

import (
	"context"
	"iter"
	"time"

	"ration/internal/job"
)

// watchInterval is how often Watch reads the machine if nothing is due earlier.
const watchInterval = time.Second

// Watch follows the machine until the context ends. It first returns the events that the regions
// still have, and then new events. After the events of each read, and when anything else has
// changed, it returns an event of kind Changed. Each event has the Machine as of that read. An
// error says why the jobs could not be listed. Watch continues after an error, and returns another
// one only when the reason changes.
//
// Watch reads a job again only if it has changed. Machine has the latest few ended jobs of each
// user, and counts the others (Hidden).
func Watch(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		wake := make(chan struct{}, 1)
		soon := func() {
			select {
			case wake <- struct{}{}:
			default: // a wake-up is pending
			}
		}
		s := newScanner(job.ScanOptions{Background: true, Wake: soon, Ended: soon})
		defer s.Close()
		failed, all := "", time.Now()
		for ctx.Err() == nil {
			now := time.Now()
			r, err := s.Scan(!now.Before(all))
			if !now.Before(all) {
				all = now.Add(watchInterval)
			}
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
			next := time.Until(all)
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
