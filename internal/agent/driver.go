package agent

import (
	"context"
	"sync"
	"time"

	"ration/internal/gpu"
	"ration/internal/node"
)

const (
	driverInterval = 5 * time.Second  // how often the driver is asked
	driverRetry    = 30 * time.Second // how often it is looked for where there is none
	driverPatience = 15 * time.Second // after which what it said is not shown any more
)

// driver asks the driver from time to time, in a goroutine of its own: it may not answer.
type driver struct {
	mu    sync.Mutex
	last  *saying   // under mu; nil while there is none
	fresh bool      // under mu: it was not handed out yet
	at    time.Time // under mu
}

func newDriver() *driver { return &driver{} }

// saying is what the driver said at one time.
type saying struct {
	devices   []gpu.Device
	status    map[int]gpu.Status
	failed    map[int]error
	processes []gpu.Process
	silent    error // why there is no list of processes
}

func (s *saying) Describe() []gpu.Device { return s.devices }
func (s *saying) Status(device int) (gpu.Status, error) {
	return s.status[device], s.failed[device]
}
func (s *saying) Processes() ([]gpu.Process, error) { return s.processes, s.silent }

// run asks until the context ends, and calls wake for each answer. It keeps the driver open, and
// opens it anew when that does not answer, as after it was loaded again.
func (d *driver) run(ctx context.Context, wake func()) {
	var session gpu.Session
	defer session.Close()
	for {
		wait := driverRetry
		if g, err := session.Driver(); err == nil {
			s := ask(g)
			if s.silent != nil {
				session.Failed()
			}
			d.set(s)
			wake()
			wait = driverInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func ask(g node.Driver) *saying {
	s := &saying{devices: g.Describe(), status: map[int]gpu.Status{}, failed: map[int]error{}}
	for _, d := range s.devices {
		s.status[d.Index], s.failed[d.Index] = g.Status(d.Index)
	}
	s.processes, s.silent = g.Processes()
	return s
}

func (d *driver) set(s *saying) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.fresh, d.at = s, true, time.Now()
}

// said returns what the driver said last, or nil, and whether that is news.
func (d *driver) said() (node.Driver, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	news := d.fresh
	d.fresh = false
	if d.last != nil && time.Since(d.at) > driverPatience {
		d.last, news = nil, true
	}
	if d.last == nil {
		return nil, news
	}
	return d.last, news
}
