package launch

import (
	"cmp"
	"errors"
	"io/fs"
	"math"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/termtext"
	"ration/machine"
)

// Summary is the resource use of a supervised job. Sizes are bytes.
type Summary struct {
	Job        string          `json:"job"`
	Status     int             `json:"status"`           // exit status of the command; 128 plus the signal's number after a signal
	Signal     int             `json:"signal,omitempty"` // signal that ended the command
	Seconds    float64         `json:"seconds"`
	Shared     bool            `json:"shared,omitempty"` // Devices and Processes are of all programs of the user, under a policy
	Devices    []DeviceSummary `json:"devices"`
	Processes  []Peak          `json:"processes"`
	Unrecorded int             `json:"unrecorded"` // processes that joined and left between two samples, or exceeded maxRecorded
	Error      string          `json:"error,omitempty"`
}

// Refused returns the number of refused requests, on all devices.
func (s Summary) Refused() (n uint64) {
	for _, d := range s.Devices {
		n += d.Refused
	}
	return n
}

// DeviceSummary is the job's use of one device. All values but AtLimit are exact.
type DeviceSummary struct {
	Device  int     `json:"device"`
	Limited bool    `json:"limited"`
	Limit   uint64  `json:"limit"`
	Peak    uint64  `json:"peak"`
	Refused uint64  `json:"refused"`
	AtLimit float64 `json:"at_limit"` // seconds in which requests were refused, or less than 2 % was free

	Compute *machine.Compute `json:"compute,omitempty"` // at the end; nil for a job with neither a share nor a cap
}

// Peak is the most memory that one process held on one device, in total and of each kind. Each
// value is a separate maximum. The kinds come from samples, so they are 0 for a process that lived
// only between two samples.
type Peak struct {
	PID      int    `json:"pid"`
	Name     string `json:"name"`
	Verified bool   `json:"verified"` // the kernel confirmed PID and Name while it lived; otherwise the job claims them
	Device   int    `json:"device"`
	Total    uint64 `json:"total"`
	Context  uint64 `json:"context"`
	Module   uint64 `json:"module"`
	Data     uint64 `json:"data"`
	Overhead uint64 `json:"overhead"`

	// As of the latest sample, in a job with a share or a cap.
	Slice       uint64 `json:"slice_us,omitempty"`     // microseconds of each context in a round
	NotEnforced string `json:"not_enforced,omitempty"` // why its share is not enforced; empty if it is
	TimeUsed    uint64 `json:"time_used_ns,omitempty"`
	TimeWaited  uint64 `json:"time_waited_ns,omitempty"`
}

// sampleInterval is how often a recorder reads the region; a sample reads a few words of memory.
const sampleInterval = 20 * time.Millisecond

// pauseAfter returns the pause after a sample that took the given time. A job can make samples
// slow, and must not keep this process busy.
func pauseAfter(took time.Duration) time.Duration { return max(sampleInterval, 9*took) }

// maxRecorded bounds the processes and peaks that are kept: a job could claim a thousand new
// processes for each sample.
const maxRecorded = 4096

// recorder samples a region in a goroutine of its own, and keeps the peaks. Only that goroutine may
// use its fields until done is closed.
type recorder struct {
	path     string
	r        *region.Region // nil while there is none at path
	err      error
	started  time.Time
	last     time.Time // time of the latest sample
	recorded map[owner]*member
	dropped  int // most processes or peaks beyond maxRecorded in one sample
	excess   int // the same for the current sample
	peaks    map[account]*Peak
	device   [abi.Devices]deviceRecord
	holdings []region.Holding  // reused by each sample
	departed []region.Departed // reused by each sample
	quit     chan struct{}     // closed by stop
	done     chan struct{}     // closed when the goroutine has ended
}

type deviceRecord struct {
	limit   abi.Limit     // at the latest sample with one other than 0
	refused uint64        // refused requests at the latest sample
	atLimit time.Duration // so far
}

// owner identifies a process. A slot is reused, but never at the same time.
type owner struct {
	slot   int
	joined int64 // Unix nanoseconds
}

// member is the identity of a process, as claimed by the job or confirmed by the kernel.
type member struct {
	pid      int
	name     string
	verified bool
}

// account is a process's use of one device.
type account struct {
	owner
	device int
}

func startRecorder(path string) *recorder {
	rec := &recorder{
		path: path, recorded: map[owner]*member{}, peaks: map[account]*Peak{},
		started: time.Now(), last: time.Now(), quit: make(chan struct{}), done: make(chan struct{}),
	}
	opened := rec.open() == nil
	go func() {
		defer close(rec.done)
		for rec.err == nil {
			began := time.Now()
			if opened = opened || rec.open() == nil; opened {
				rec.sample()
			}
			select {
			case <-time.After(pauseAfter(time.Since(began))):
			case <-rec.quit:
				return
			}
		}
	}()
	return rec
}

// open opens the region. There may be none yet: under a policy, a user's first program makes it.
func (rec *recorder) open() error {
	r, err := region.OpenReadOnly(rec.path)
	if err != nil {
		return err
	}
	rec.r = r
	for d := range abi.Devices {
		if _, rec.err = rec.limit(d); rec.err != nil {
			break
		}
	}
	return nil
}

func (rec *recorder) sample() {
	now := time.Now()
	if rec.err = rec.r.Refresh(); rec.err != nil {
		return
	}
	processes, err := rec.r.Processes()
	if err != nil {
		rec.err = err
		return
	}
	rec.excess = 0
	defer func() { rec.dropped = max(rec.dropped, rec.excess) }()
	bySlot := map[int]region.Process{}
	for _, p := range processes {
		bySlot[p.Slot] = p
		rec.record(owner{p.Slot, p.Joined}, p.PID, p.Name)
	}
	rec.confirm(processes)
	for d := range abi.Devices {
		if rec.r.Peak(d) == 0 && rec.r.Refused(d) == 0 {
			continue
		}
		if rec.holdings, rec.err = rec.r.Holdings(d, rec.holdings[:0]); rec.err != nil {
			return
		}
		compute, err := rec.r.Compute(d)
		if err != nil {
			rec.err = err
			return
		}
		used := rec.r.Used(d)
		for _, h := range rec.holdings {
			p, found := bySlot[h.Slot]
			if p.Dead && !p.Lent { // no process has claimed its bytes yet
				used -= min(used, h.Total)
			}
			if !found || h.Peak == 0 {
				continue
			}
			peak := rec.addHolding(p, d, h)
			if peak == nil || !compute.Set() {
				continue
			}
			if rec.err = rec.addCompute(peak, compute, d, h); rec.err != nil {
				return
			}
		}
		if rec.err = rec.addDeparted(d); rec.err != nil {
			return
		}
		rec.addTimeAtLimit(d, used, now.Sub(rec.last))
	}
	rec.last = now
}

// addDeparted adds the processes that left since the last sample. Their kinds of memory are
// unknown.
func (rec *recorder) addDeparted(device int) (err error) {
	if rec.departed, err = rec.r.Departed(device, rec.departed[:0]); err != nil {
		return err
	}
	for _, p := range rec.departed {
		o := owner{p.Slot, p.Joined}
		rec.record(o, p.PID, p.Name)
		if peak := rec.peak(account{o, device}); peak != nil {
			peak.Total = max(peak.Total, p.Peak)
		}
	}
	return nil
}

// record adds a process, unless there are maxRecorded already.
func (rec *recorder) record(o owner, pid int, name string) {
	switch {
	case rec.recorded[o] != nil:
	case len(rec.recorded) < maxRecorded:
		rec.recorded[o] = &member{pid: pid, name: name}
	default:
		rec.excess++
	}
}

// peak returns the record of a process on a device, or nil if there are maxRecorded already.
func (rec *recorder) peak(key account) *Peak {
	peak := rec.peaks[key]
	if peak == nil && len(rec.peaks) < maxRecorded && rec.recorded[key.owner] != nil {
		peak = &Peak{Device: key.device}
		rec.peaks[key] = peak
	}
	return peak
}

// confirm replaces the claimed identities of living processes by the kernel's.
func (rec *recorder) confirm(processes []region.Process) {
	type answer struct {
		*member
		p     region.Process
		comm  string
		inner int // PID in its own namespace
	}
	var asked []answer
	for _, p := range processes {
		w := rec.recorded[owner{p.Slot, p.Joined}]
		if w == nil || w.verified || p.Seen == 0 || p.Dead {
			continue
		}
		if _, comm, inner, err := proc.Owner(p.Seen); err == nil {
			asked = append(asked, answer{w, p, comm, inner})
		}
	}
	rec.r.AskAgain() // after all queries, because a PID may have been reused
	for _, a := range asked {
		if rec.r.LockedBy(a.p.Slot) != a.p.Seen {
			continue
		}
		a.verified, a.pid = true, cmp.Or(a.inner, a.p.Seen)
		if !proc.CalledBy(a.p.Seen, a.p.Name, a.comm) {
			a.name = termtext.Printable(a.comm)
		}
	}
}

// addCompute records a process's use of a device's time, in a job with a share or a cap.
func (rec *recorder) addCompute(peak *Peak, job region.Compute, device int, h region.Holding) error {
	c, err := rec.r.ProcessCompute(device, h.Slot)
	if err != nil {
		return err
	}
	peak.TimeUsed, peak.TimeWaited = c.Used, c.Waited
	if job.Share != 0 && h.Kind[abi.Context] > 0 {
		peak.Slice, peak.NotEnforced = c.Slice.Time(), c.NotEnforced()
	}
	return nil
}

func (rec *recorder) addHolding(p region.Process, device int, h region.Holding) *Peak {
	peak := rec.peak(account{owner{p.Slot, p.Joined}, device})
	if peak == nil {
		return nil
	}
	peak.Total = max(peak.Total, h.Peak, h.Total)
	peak.Context = max(peak.Context, h.Kind[abi.Context])
	peak.Module = max(peak.Module, h.Kind[abi.Module])
	peak.Data = max(peak.Data, h.Kind[abi.Data])
	peak.Overhead = max(peak.Overhead, h.Kind[abi.Overhead])
	return peak
}

func (rec *recorder) addTimeAtLimit(device int, used uint64, sinceLast time.Duration) {
	limit, err := rec.limit(device)
	if err != nil || !limit.Limited() {
		return
	}
	refused, dev := rec.r.Refused(device), &rec.device[device]
	if ceiling := limit.Ceiling() * abi.Unit; refused != dev.refused || used > ceiling-ceiling/50 {
		dev.atLimit += sinceLast
	}
	dev.refused = refused
}

// stop ends the recording and returns the summary.
func (rec *recorder) stop() Summary {
	close(rec.quit)
	<-rec.done
	s := Summary{Devices: []DeviceSummary{}, Processes: []Peak{}, Seconds: time.Since(rec.started).Seconds()}
	if rec.r == nil {
		if err := rec.open(); !errors.Is(err, fs.ErrNotExist) { // without a region, no process held anything
			rec.err = err
		}
	}
	if rec.r != nil && rec.err == nil {
		rec.sample() // includes processes that ended without returning their memory
		rec.err = rec.summarise(&s)
		_ = rec.r.Close() // it was only read
	}
	if rec.err != nil {
		s.Error = rec.err.Error()
	}
	return s
}

// limit returns a device's limit. Under a policy, the service sets the limits of a run to 0 when it ends, which may be
// before this process has read them: then it returns the limit before that.
func (rec *recorder) limit(device int) (abi.Limit, error) {
	limit, err := rec.r.Limit(device)
	if err != nil {
		return limit, err
	}
	if last := &rec.device[device].limit; !limit.Limited() || limit.Bytes() > 0 || !last.IsSet() {
		*last = limit
	}
	return rec.device[device].limit, nil
}

func (rec *recorder) summarise(s *Summary) error {
	for d := range abi.Devices {
		limit, err := rec.limit(d)
		if err != nil {
			return err
		}
		compute, err := rec.r.Compute(d)
		if err != nil {
			return err
		}
		dev := DeviceSummary{Device: d, Limited: limit.Limited(), Limit: limit.Bytes(), Peak: rec.r.Peak(d), Refused: rec.r.Refused(d),
			AtLimit: rec.device[d].atLimit.Seconds()}
		if compute.Set() {
			dev.Compute = &machine.Compute{Share: compute.Share, Max: compute.Max, Round: compute.Round, Used: compute.Used, Waited: compute.Waited}
		}
		// A device that the job may not use, as those that a policy hides, is none of it.
		if limit.Limited() && dev.Limit > 0 || dev.Peak > 0 || dev.Refused > 0 {
			s.Devices = append(s.Devices, dev)
		}
	}
	for of, p := range rec.peaks {
		w := rec.recorded[of.owner]
		p.PID, p.Name, p.Verified = w.pid, w.name, w.verified
		s.Processes = append(s.Processes, *p)
	}
	slices.SortFunc(s.Processes, func(a, b Peak) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
	})
	c, err := rec.r.Counters()
	s.Unrecorded = max(0, int(min(c.Claims, math.MaxInt32))-len(rec.recorded), rec.dropped)
	return err
}
