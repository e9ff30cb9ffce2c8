package gputest

import (
	"errors"
	"time"

	"ration/internal/observer"
	"ration/internal/region"
)

// watch reads both counts of a job again and again while its programs work. Its
// fields are final after stop. Sizes are in bytes.
type watch struct {
	readings    int
	mostDriver  uint64    // the driver's highest count for the whole job
	mostRation  uint64    // ration's
	differences []float64 // ration's count minus the driver's, for each reading

	loop *observer.Loop
}

const (
	readEvery = 5 * time.Millisecond
	pidsEvery = 10 * readEvery // how often new processes are looked for
)

// watch starts to watch the trial's job, which need not exist yet.
func (t *Trial) watch() *watch {
	w := &watch{}
	found, lastPIDs := false, time.Time{}
	w.loop = observer.Start(readEvery, func() error {
		if time.Since(lastPIDs) > pidsEvery {
			if _, err := t.readPIDs(); err != nil {
				if found {
					return err
				}
				return nil // not made yet
			}
			found, lastPIDs = true, time.Now()
		}
		return w.read(t)
	})
	return w
}

// read takes one reading. The counts of a working job are not read at one instant,
// so that only the distribution of many differences means something.
func (w *watch) read(t *Trial) error {
	counts, err := t.driverCounts(t.known.all()) // a process that has left the region may still use memory
	if err != nil {
		return err
	}
	var driver uint64
	for _, bytes := range counts {
		driver += bytes
	}
	if driver == 0 {
		return nil // no process uses the device
	}
	w.readings++
	w.mostDriver = max(w.mostDriver, driver)
	r, err := region.OpenReadOnly(t.job.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	used := r.Used(t.device)
	w.mostRation = max(w.mostRation, used)
	w.differences = append(w.differences, float64(int64(used)-int64(driver)))
	return nil
}

// stop ends the watch. It may be called more than once.
func (w *watch) stop() error { return w.loop.Stop() }

// checkWatch ends a watch over n programs and checks the limit. It includes what was
// read at rest: programs may be done before a watch has read anything.
func (t *Trial) checkWatch(w *watch, n int) error {
	err := w.stop()
	w.mostDriver = max(w.mostDriver, t.mostAtRest)
	t.values["most_driver"], t.values["most_ration"], t.values["readings"] = int64(w.mostDriver), int64(w.mostRation), int64(w.readings)
	return errors.Join(err, t.checkLimit("at some moment", w.mostDriver, n))
}
