package machine

import (
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Compute is a job's ration of one device's time, shared by all processes of the job.
type Compute struct {
	Share   int    `json:"share"`     // per cent that the job gets at least while it has work; 0 without a share
	Max     int    `json:"max"`       // per cent that the job gets at most; 0 without a cap
	Round   uint64 `json:"round_us"`  // microseconds of a round, of which each share is a slice
	Working int    `json:"working"`   // contexts with work, of all processes
	Used    uint64 `json:"used_ns"`   // nanoseconds of the device's time; measured only while there is a cap
	Waited  uint64 `json:"waited_ns"` // nanoseconds that launches waited because of the cap, summed over all threads

	InTurn uint64 `json:"in_turn_ns"` // the part of Used in which no other context had the device, for certain; the rest has turns of others in it
}

// Values of ProcessCompute.State.
const (
	Kept        = "kept"         // the driver uses the slice that was requested
	NotEnforced = "not enforced" // Reason says why
)

// ProcessCompute is the use of a device's time by one process of a job with a share or a cap.
type ProcessCompute struct {
	State   string `json:"state"`            // Kept, NotEnforced, or empty: no share, or no context yet
	Reason  string `json:"reason,omitempty"` // why a share is not enforced
	Slice   uint64 `json:"slice_us"`         // microseconds of each of its contexts in a round; 0 if unknown
	Working int    `json:"working"`          // contexts with work
	Waiting bool   `json:"waiting"`          // a thread waits for the device
	Used    uint64 `json:"used_ns"`          // nanoseconds of the device's time, measured for a cap
	Waited  uint64 `json:"waited_ns"`        // nanoseconds that its launches waited because of a cap
	Held    bool   `json:"held"`             // it has a context, and it started when the job had a share or a cap on some device
}

// Time is the recent share that a process had of the time of a device or of one processor.
type Time struct {
	Percent float64 `json:"percent"`
	Seconds float64 `json:"seconds"` // length of the period it was measured over
	About   bool    `json:"about"`   // from the driver's samples, which may be wrong by several points; false: measured for a cap
}

// Measured reports whether the library measures the job's time of a device now. Without a cap,
// Compute.Used stays as it is, whatever the job does.
func (j *Job) Measured(device int) bool {
	for i := range j.Devices {
		if d := &j.Devices[i]; d.Device == device {
			return d.Compute != nil && d.Compute.Max != 0
		}
	}
	return false
}

// Short formats a share and a cap briefly: 30%, 30%≤50%, ≤50%.
func (c *Compute) Short() string {
	switch {
	case c == nil:
		return ""
	case c.Max == 0:
		return fmt.Sprintf("%d%%", c.Share)
	case c.Share == 0:
		return fmt.Sprintf("≤%d%%", c.Max)
	}
	return fmt.Sprintf("%d%%≤%d%%", c.Share, c.Max)
}

// Sentence describes the share and the cap, and how much of the device's time was used. It has no
// period.
func (c *Compute) Sentence() string {
	text := ""
	if c.Share != 0 {
		text = fmt.Sprintf("at least %d %%", c.Share)
	}
	if c.Max != 0 {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("at most %d %%", c.Max)
	}
	text += " of its time"
	if c.Share != 0 {
		text += fmt.Sprintf(", in rounds of %s", humanfmt.Span(time.Duration(c.Round)*time.Microsecond))
	}
	text += fmt.Sprintf("; %s with work", humanfmt.Plural(c.Working, "context", "contexts"))
	if c.Max != 0 || c.Used != 0 {
		text += fmt.Sprintf("; used %s, waited %s", humanfmt.Span(time.Duration(c.Used)), humanfmt.Span(time.Duration(c.Waited)))
	}
	return text
}

// readCompute reads a device's share and cap.
func readCompute(r *region.Region, device int) (*Compute, error) {
	c, err := r.Compute(device)
	if err != nil || !c.Set() {
		return nil, err
	}
	return &Compute{Share: c.Share, Max: c.Max, Round: c.Round, Used: c.Used, Waited: c.Waited, InTurn: c.InTurn}, nil
}

// readProcessCompute reads a process's use of a device's time. now is the monotonic clock in
// microseconds. alive says whether the process is alive.
func readProcessCompute(r *region.Region, job *Compute, h Holding, slot int, alive bool, now uint64) (*ProcessCompute, error) {
	c, err := r.ProcessCompute(h.Device, slot)
	if err != nil {
		return nil, err
	}
	out := &ProcessCompute{Held: c.Held(), Slice: c.Slice.Time(), Used: c.Used, Waited: c.Waited}
	if alive && hasWork(c.Work, now) {
		out.Working, out.Waiting = c.Work.Contexts(), c.Work.Waiting() != 0
	}
	if job.Share == 0 {
		return out, nil
	}
	switch reason := c.NotEnforced(); {
	case reason == "":
		out.State = Kept
	case c.Slice.State() != abi.SliceNone || h.Context > 0:
		out.State, out.Reason = NotEnforced, reason
	}
	return out, nil
}

// hasWork reports whether a sign of work still counts. now is the monotonic clock in microseconds.
// A sign counts for a short time, and longer while a thread waits for the device. A sign from the
// future, which a job could have written, counts as new.
func hasWork(w abi.Work, now uint64) bool {
	return w != 0 && (w.Waiting() != 0 || w.Time()+abi.WorkLeaseUS > now)
}

// monotonic returns the clock that signs of work use, in microseconds.
func monotonic() uint64 { return region.Monotonic() / 1000 }
