package machine

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Compute is a job's ration of one device's time, which all its processes have together.
type Compute struct {
	Share   int    `json:"share"`     // per cent that the job has at least while it has work; 0 without a share
	Max     int    `json:"max"`       // per cent that the job has at most; 0 without a cap
	Round   uint64 `json:"round_us"`  // microseconds that shares are slices of
	Working int    `json:"working"`   // contexts with work, of all its processes
	Used    uint64 `json:"used_ns"`   // nanoseconds of the device's time, where there is or was a cap
	Waited  uint64 `json:"waited_ns"` // nanoseconds that launches waited for the cap, over all threads
}

// States of a process's share: ProcessCompute.State.
const (
	Kept        = "kept"         // the driver has the slice that was asked for
	NotEnforced = "not enforced" // Reason says why
)

// ProcessCompute is what a process has of a device's time in a job with a share or a cap.
type ProcessCompute struct {
	State   string `json:"state"`            // Kept, NotEnforced, or empty: no share, or no context yet
	Reason  string `json:"reason,omitempty"` // why a share is not enforced
	Slice   uint64 `json:"slice_us"`         // microseconds of each of its contexts in a round; 0 while unknown
	Working int    `json:"working"`          // contexts with work
	Waiting bool   `json:"waiting"`          // a thread waits for the device
	Used    uint64 `json:"used_ns"`          // nanoseconds of the device's time, as measured for a cap
	Waited  uint64 `json:"waited_ns"`        // nanoseconds that its launches waited for a cap
	Held    bool   `json:"held"`             // to shares and caps: it has a context, and began when the job had one of them, of any device
}

// Time is how much of a device's time a process had lately.
type Time struct {
	Percent float64 `json:"percent"`
	Seconds float64 `json:"seconds"` // over which
	About   bool    `json:"about"`   // by the driver's samples, which may be wrong by several points; otherwise measured for a cap
}

// Short renders a share and a cap in few letters: 30%, 30%≤50%, ≤50%.
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

// Sentence says in words what the job may have, and what it has had: without a period.
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
	return &Compute{Share: c.Share, Max: c.Max, Round: c.Round, Used: c.Used, Waited: c.Waited}, nil
}

// readProcessCompute reads what a process has of a device's time, at a time of the
// monotonic clock in microseconds. alive says whether the process is.
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
		out.Slice = 0
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

// hasWork reports whether a sign of work counts at a time of the monotonic clock: for a
// while, and longer while a thread waits for the device. A sign from the future, which a
// job could have written, counts as one of now.
func hasWork(w abi.Work, now uint64) bool {
	return w != 0 && (w.Waiting() != 0 || w.Time()+abi.WorkLeaseUS > now)
}

// monotonic returns the clock of signs of work, in microseconds.
func monotonic() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return uint64(t.Nano() / 1000)
}
