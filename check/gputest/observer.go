package gputest

import (
	"errors"
	"time"

	"ration/check/observer"
	"ration/internal/region"
)

// countObserver reads both counts of a job again and again while its programs work. Its
// fields are final after stop. Sizes are in bytes.
type countObserver struct {
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

// observeCounts starts to observe the trial's job, which need not exist yet.
func (t *Trial) observeCounts() *countObserver {
	o := &countObserver{}
	found, lastPIDs := false, time.Time{}
	o.loop = observer.Start(readEvery, func() error {
		if time.Since(lastPIDs) > pidsEvery {
			if _, err := t.readPIDs(); err != nil {
				if found {
					return err
				}
				return nil // not made yet
			}
			found, lastPIDs = true, time.Now()
		}
		return o.read(t)
	})
	return o
}

// read takes one reading. The counts of a working job are not read at one instant,
// so that only the distribution of many differences means something.
func (o *countObserver) read(t *Trial) error {
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
	o.readings++
	o.mostDriver = max(o.mostDriver, driver)
	r, err := region.OpenMapped(t.job.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	used := r.Used(t.device)
	o.mostRation = max(o.mostRation, used)
	o.differences = append(o.differences, float64(int64(used)-int64(driver)))
	return nil
}

// stop ends the readings. It may be called more than once.
func (o *countObserver) stop() error { return o.loop.Stop() }

// checkObserved ends the readings over n programs and checks the limit, also by what was
// read at rest: programs may be done before the first reading.
func (t *Trial) checkObserved(o *countObserver, n int) error {
	err := o.stop()
	o.mostDriver = max(o.mostDriver, t.mostAtRest)
	t.values["most_driver"], t.values["most_ration"], t.values["readings"] = int64(o.mostDriver), int64(o.mostRation), int64(o.readings)
	return errors.Join(err, t.checkLimit("at some moment", o.mostDriver, n))
}
