package launch

import (
	"cmp"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// Summary is what became of a supervised job. Sizes are bytes.
type Summary struct {
	Job       string          `json:"job"`
	Status    int             `json:"status"`           // the command's; 128 and the signal, where it died of one
	Signal    int             `json:"signal,omitempty"` // it died of
	Seconds   float64         `json:"seconds"`
	Devices   []DeviceSummary `json:"devices"`
	Processes []Peak          `json:"processes"`
	Unseen    int             `json:"unseen"` // processes that came and went between two looks
	Error     string          `json:"error,omitempty"`
}

// DeviceSummary is exact but for AtLimit.
type DeviceSummary struct {
	Device  int     `json:"device"`
	Limited bool    `json:"limited"`
	Limit   uint64  `json:"limit"`
	Peak    uint64  `json:"peak"`
	Refused uint64  `json:"refused"`
	AtLimit float64 `json:"at_limit"` // seconds in which requests were refused, or less than a fiftieth was free
}

// Peak is the most that one process held of one device, in all and of each kind.
// Each is a maximum of its own. Kinds are those that were seen while it lived; of a
// process that was gone before anybody looked only the total is known.
type Peak struct {
	PID      int    `json:"pid"`
	Name     string `json:"name"`
	Device   int    `json:"device"`
	Total    uint64 `json:"total"`
	Context  uint64 `json:"context"`
	Module   uint64 `json:"module"`
	Data     uint64 `json:"data"`
	Overhead uint64 `json:"overhead"`
}

// often is how often a watcher looks. What it looks at is a few words of memory.
const often = 20 * time.Millisecond

// watcher reads a region beside the job.
type watcher struct {
	r     *region.Region
	err   error
	began time.Time
	last  time.Time
	who   map[owner]bool
	peaks map[account]*Peak
	dev   [abi.Devices]struct {
		refused uint64
		at      time.Duration
	}
	buf     []region.Holding
	gone    []region.Departed
	stop    chan struct{}
	stopped chan struct{}
}

// owner names a process for good: a slot and the moment it was taken.
type owner struct {
	slot   int
	joined int64
}

type account struct {
	owner
	device int
}

func watch(path string) *watcher {
	w := &watcher{
		who: map[owner]bool{}, peaks: map[account]*Peak{},
		began: time.Now(), last: time.Now(), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	if w.r, w.err = region.OpenReadOnly(path); w.err != nil {
		close(w.stopped)
		return w
	}
	go func() {
		defer close(w.stopped)
		ticker := time.NewTicker(often)
		defer ticker.Stop()
		for w.err == nil {
			w.look()
			select {
			case <-ticker.C:
			case <-w.stop:
				return
			}
		}
	}()
	return w
}

func (w *watcher) look() {
	now := time.Now()
	all, err := w.r.Processes()
	if err != nil {
		w.err = err
		return
	}
	at := map[int]region.Process{}
	for _, p := range all {
		at[p.Slot] = p
		w.who[owner{p.Slot, p.Joined}] = true
	}
	for d := range abi.Devices {
		if w.r.Peak(d) == 0 && w.r.Refused(d) == 0 {
			continue
		}
		if w.buf, w.err = w.r.Holdings(d, w.buf[:0]); w.err != nil {
			return
		}
		for _, h := range w.buf {
			if p, there := at[h.Slot]; there && h.Peak > 0 {
				w.see(p, d, h)
			}
		}
		if w.err = w.past(d); w.err != nil {
			return
		}
		w.clock(d, now.Sub(w.last))
	}
	w.last = now
}

// past looks at those who came and went since the last time. Their kinds are gone
// with them.
func (w *watcher) past(d int) (err error) {
	if w.gone, err = w.r.Departed(d, w.gone[:0]); err != nil {
		return err
	}
	for _, p := range w.gone {
		key := owner{p.Slot, p.Joined}
		w.who[key] = true
		peak := w.peak(account{key, d}, p.PID, p.Name)
		peak.Total = max(peak.Total, p.Peak)
	}
	return nil
}

func (w *watcher) peak(at account, pid int, name string) *Peak {
	peak := w.peaks[at]
	if peak == nil {
		peak = &Peak{PID: pid, Name: name, Device: at.device}
		w.peaks[at] = peak
	}
	return peak
}

func (w *watcher) see(p region.Process, device int, h region.Holding) {
	peak := w.peak(account{owner{p.Slot, p.Joined}, device}, p.PID, p.Name)
	peak.Total = max(peak.Total, h.Peak, h.Total)
	peak.Context = max(peak.Context, h.Kind[abi.Context])
	peak.Module = max(peak.Module, h.Kind[abi.Module])
	peak.Data = max(peak.Data, h.Kind[abi.Data])
	peak.Overhead = max(peak.Overhead, h.Kind[abi.Overhead])
}

// clock adds up the time at the limit.
func (w *watcher) clock(d int, passed time.Duration) {
	limit, err := w.r.Limit(d)
	if err != nil || !limit.Limited() {
		return
	}
	refused, dev := w.r.Refused(d), &w.dev[d]
	if free := limit.Ceiling() * abi.Unit; refused != dev.refused || w.r.Used(d) > free-free/50 {
		dev.at += passed
	}
	dev.refused = refused
}

func (w *watcher) end() Summary {
	close(w.stop)
	<-w.stopped
	s := Summary{Devices: []DeviceSummary{}, Processes: []Peak{}, Seconds: time.Since(w.began).Seconds()}
	if w.r != nil && w.err == nil {
		w.look() // a last time, for those who left without giving back
		w.err = w.finish(&s)
		_ = w.r.Close() // it was open for reading only
	}
	if w.err != nil {
		s.Error = w.err.Error()
	}
	return s
}

func (w *watcher) finish(s *Summary) error {
	for d := range abi.Devices {
		limit, err := w.r.Limit(d)
		if err != nil {
			return err
		}
		out := DeviceSummary{d, limit.Limited(), limit.Bytes(), w.r.Peak(d), w.r.Refused(d), w.dev[d].at.Seconds()}
		if limit.Limited() || out.Peak > 0 || out.Refused > 0 {
			s.Devices = append(s.Devices, out)
		}
	}
	for _, p := range w.peaks {
		s.Processes = append(s.Processes, *p)
	}
	slices.SortFunc(s.Processes, func(a, b Peak) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
	})
	c, err := w.r.Counters()
	s.Unseen = max(0, int(c.Claims)-len(w.who))
	return err
}
