package demo

import (
	"errors"
	"fmt"
	"time"

	"ration/check/observer"
	"ration/internal/region"
)

// end lets all workers stop allocating, compares the accounts, and lets the workers
// end.
func (r *run) end() (err error) {
	for i, w := range r.workers {
		if i == hog {
			continue
		}
		requests, refused, slowest, err := w.endChurn()
		if err != nil {
			return err
		}
		r.Requests, r.Refused = r.Requests+requests, r.Refused+refused
		if i != stopped { // whose longest call lasted as long as it was stopped
			r.Slowest = max(r.Slowest, int64(slowest))
		}
	}
	if r.Held, err = r.accounts(); err != nil {
		return err
	}
	inside, err := r.machine.SMI(true)
	if err != nil {
		return err
	}
	outside, err := r.machine.SMI(false)
	if err != nil {
		return err
	}
	r.SMI = SMI{inside, outside}
	time.Sleep(r.pause / 4)
	var errs []error
	for i, w := range r.workers {
		if i != hog {
			errs = append(errs, w.quit())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if r.End, err = r.accounts(); err != nil {
		return err
	}
	if err := r.observer.Stop(); err != nil {
		return err
	}
	r.Readings, r.Exceeded, r.Most = r.observer.Readings, r.observer.Exceeded, max(r.observer.Most, r.region.Peak(0))
	r.Agree = r.asPromised()
	return nil
}

// asPromised returns whether all that the report says is as ration promises it.
func (r *run) asPromised() bool {
	const living = workers - 1
	held := r.Held.agree() && r.Held.Processes == living && r.Held.Contexts == living*r.Context
	end := r.End.agree() && r.End.Granted == 0 && r.End.Processes == 0
	limit := r.Exceeded == 0 && r.Most <= r.Limit && r.Refused == 0 && r.Greedy.Refused
	smi := r.SMI.Inside.Total == r.Limit>>20 && r.SMI.Inside.Used == r.Held.Granted>>20
	return held && end && limit && smi
}

// agree returns whether all three counts are the same.
func (a Accounts) agree() bool { return a.Granted == a.Held && a.Driver == a.Granted }

// accounts reads all counts. They agree only while no program allocates or frees.
func (r *run) accounts() (Accounts, error) {
	b, err := observer.ReadBalance(r.region, 0)
	if err != nil {
		return Accounts{}, err
	}
	driver, err := r.outside.Used(within)
	return Accounts{b.Granted, b.Held, b.Contexts, driver, b.Processes}, err
}

// find returns the region's entry of a worker.
func (r *run) find(w *worker) (region.Process, error) {
	processes, err := r.region.Processes()
	if err != nil {
		return region.Process{}, err
	}
	for _, p := range processes {
		if p.PID == w.PID() {
			return p, nil
		}
	}
	return region.Process{}, fmt.Errorf("pid %d has no slot in %s", w.PID(), r.machine.Region)
}

// holds returns how many bytes a worker holds, dead or alive. Whoever looks at the machine's jobs
// meanwhile may have given them back: then it is what the dead one held.
func (r *run) holds(w *worker) (bytes uint64, err error) {
	p, err := r.find(w)
	if err != nil {
		deaths, _ := r.region.Deaths()
		for _, d := range deaths {
			if d.PID == w.PID() {
				return d.Held[0], nil
			}
		}
		return 0, err
	}
	holdings, err := r.region.Holdings(0, nil)
	for _, h := range holdings {
		if p.Slot == h.Slot {
			bytes = h.Total
		}
	}
	return bytes, err
}
