package launch

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/safepath"
	"ration/machine"
)

// jobWatch tells when jobs end or change.
type jobWatch struct {
	changed chan struct{}
	stop    func()

	mu      sync.Mutex
	waiting map[machine.JobID]bool         // a goroutine waits for its end
	pauses  map[machine.JobID]*job.Backoff // of jobs whose end was waited for
}

func watchJobs() (*jobWatch, error) {
	notify, err := safepath.NewWatcher()
	if err != nil {
		return nil, err
	}
	dir, err := safepath.OpenFolder(job.Folder())
	if err == nil {
		_, err = notify.Add(dir, unix.IN_ATTRIB|unix.IN_DELETE|unix.IN_MOVED_FROM)
		_ = unix.Close(dir)
	}
	if err != nil {
		notify.Close()
		return nil, fmt.Errorf("watching %s: %w", job.Folder(), err)
	}
	w := &jobWatch{changed: make(chan struct{}, 1), stop: notify.Close, waiting: map[machine.JobID]bool{}, pauses: map[machine.JobID]*job.Backoff{}}
	go func() {
		for {
			if _, err := notify.Read(); err != nil {
				return
			}
			w.wake()
		}
	}()
	return w, nil
}

func (w *jobWatch) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // the receiver has not read the last value yet
	}
}

// ends makes the watch tell when one of the jobs on these devices ends. It is called after the machine was read:
// a job that has ended since then is found at once. sure is false if the end of one of them cannot be waited for.
func (w *jobWatch) ends(m *machine.Machine, devices []int) (sure bool) {
	sure = true
	for _, device := range devices {
		for _, h := range roomOn(m, device).holders {
			j := job.Job{Name: h.job.Name, Path: h.job.Path}
			if _, standing := job.StandingSince(j); standing {
				sure = false // it keeps its limit without a process
				continue
			}
			if h.job.UID != job.User() {
				sure = false // its sleep and its lower limits change another queue
			}
			w.waitFor(j, h.job.ID())
		}
	}
	return sure
}

// waitFor starts to wait for the end of a job, unless a goroutine does so. The goroutine stays blocked if the
// command starts before that job ends.
func (w *jobWatch) waitFor(j job.Job, id machine.JobID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[id] {
		return
	}
	w.waiting[id] = true
	pause := w.pauses[id]
	w.pauses[id] = cmp.Or(pause, &job.Backoff{First: askFirst, Last: readAgain})
	go func() {
		// A job that is not over after its end, or that cannot be waited for, is not asked all the time.
		if pause != nil {
			time.Sleep(pause.After(0))
		}
		_, _, _ = job.Wait(j)
		w.mu.Lock()
		delete(w.waiting, id)
		w.mu.Unlock()
		w.wake()
	}()
}
