package gputest

import (
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
		pids, looked := map[int]bool{}, time.Time{}
		for {
			select {
			case <-w.done:
				return
			case <-time.After(every):
			}
			if time.Since(looked) > 10*every {
				looked = time.Now()
				now, err := s.pids()
				if err != nil {
					continue // not made yet
				}
				for pid := range now {
					pids[pid] = true // who has left the books may still hold memory
				}
			}
			w.read(s, pids)
		}
	})
	return w
}

func (w *watch) read(s *Stage, pids map[int]bool) {
	held, err := s.held(pids)
	if err != nil {
		w.err = err
		return
	}
	var sum uint64
	for _, bytes := range held {
		sum += bytes
	}
	w.Readings++
	w.Most = max(w.Most, sum)
	if sum > 0 {
		w.books(s.job, s.device, sum)
	}
}

// books compares the sums: with programs at work the two are not read in one
// instant, so that only many of them say something.
func (w *watch) books(j job.Job, device int, driver uint64) {
	r, err := region.View(j.Path)
	if err != nil {
		return
	}
	defer r.Close()
	used := r.Used(device)
	w.Granted = max(w.Granted, used)
	w.Off = append(w.Off, float64(int64(used)-int64(driver)))
}

func (w *watch) stop() {
	w.once.Do(func() { close(w.done) })
	w.finished.Wait()
}
