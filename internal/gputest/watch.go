package gputest

import (
	"errors"
	"sync"
	"time"

	"ration/internal/job"
	"ration/internal/region"
)

// watch reads what the driver has for a job, again and again while its programs
// work, and what the books say.
type watch struct {
	Readings int
	Most     uint64 // the driver's sum
	Granted  uint64 // the most the books ever showed
	Off      []float64

	done     chan struct{}
	once     sync.Once
	finished sync.WaitGroup
	err      error
}

// every is how often the driver is asked.
const every = 5 * time.Millisecond

// watch begins to watch the stage's job, which need not exist yet. The watch's
// figures are final after stop.
func (s *Stage) watch() *watch {
	w := &watch{done: make(chan struct{})}
	w.finished.Go(func() {
		made, looked := false, time.Time{}
		for {
			select {
			case <-w.done:
				return
			case <-time.After(every):
			}
			if time.Since(looked) > 10*every {
				looked = time.Now()
				_, err := s.pids()
				if err != nil && !made {
					looked = time.Time{}
					continue
				}
				made = true
				w.fail(err)
			}
			w.read(s)
		}
	})
	return w
}

// fail keeps the first error.
func (w *watch) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// read makes one reading. Who has left the books may still hold memory, and counts.
func (w *watch) read(s *Stage) {
	held, err := s.held(s.roll.all())
	if err != nil {
		w.fail(err)
		return
	}
	var sum uint64
	for _, bytes := range held {
		sum += bytes
	}
	if sum == 0 {
		return // nobody there: it says nothing
	}
	w.Readings++
	w.Most = max(w.Most, sum)
	w.books(s.job, s.device, sum)
}

// books compares the sums: with programs at work the two are not read in one
// instant, so that only many of them say something.
func (w *watch) books(j job.Job, device int, driver uint64) {
	r, err := region.OpenReadOnly(j.Path)
	if err != nil {
		w.fail(err)
		return
	}
	defer r.Close()
	used := r.Used(device)
	w.Granted = max(w.Granted, used)
	w.Off = append(w.Off, float64(int64(used)-int64(driver)))
}

// kept ends a watch over n programs, and judges it together with what was read at rest:
// programs may be done before a watch has read anything.
func (s *Stage) kept(w *watch, n int) error {
	w.stop()
	w.Most = max(w.Most, s.most)
	s.values["most_driver"], s.values["most_books"], s.values["readings"] = int64(w.Most), int64(w.Granted), int64(w.Readings)
	return errors.Join(w.err, s.withinLimit("at some moment", w.Most, n))
}

// stop ends a watch.
func (w *watch) stop() {
	w.once.Do(func() { close(w.done) })
	w.finished.Wait()
}
