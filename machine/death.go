package machine

import (
	"cmp"
	"fmt"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Death is a process that ended without leaving the job. Another process returned its memory to the
// job. Sizes are bytes.
type Death struct {
	Time    time.Time   `json:"at,omitzero"` // when another process noticed it
	Slot    int         `json:"slot"`        // slot of the dead process
	PID     int         `json:"pid"`         // in its own PID namespace
	HostPID int         `json:"host_pid"`
	Name    string      `json:"name"` // name of its program
	Joined  time.Time   `json:"joined_at,omitzero"`
	Reaper  int         `json:"reaper"`           // PID of the process that noticed the death, in that process's PID namespace
	Noticed string      `json:"noticed"`          // how the death was noticed
	Asleep  bool        `json:"asleep,omitempty"` // the job slept: Held was in host memory, and no memory went back to the job
	Held    []DeathHeld `json:"held"`             // for each device of which it held memory, or had it put aside if Asleep
}

// DeathHeld is the memory of one device that a dead process held.
type DeathHeld struct {
	Device int    `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

// Total returns the bytes that the process held on all devices.
func (d *Death) Total() (bytes uint64) {
	for _, h := range d.Held {
		bytes += h.Bytes
	}
	return bytes
}

// since is by what a death is known, with the slot and the PID: two may notice it, at different times.
func (d *Death) since() time.Time { return cmp.Or(d.Joined, d.Time) }

// Sentence says which process died, how much it held, and how the death was noticed. The name
// and the PID are claims of the job: the kernel can no longer confirm them.
func (d *Death) Sentence() string {
	how := fmt.Sprintf("holding %s, which went back to the job", humanfmt.Bytes(d.Total()))
	switch {
	case d.Asleep && d.Total() == 0:
		how = "while its job slept, with nothing put aside"
	case d.Asleep:
		how = fmt.Sprintf("asleep, with %s put aside in host memory", humanfmt.Bytes(d.Total()))
	}
	return fmt.Sprintf("%s died %s; %s", nameAndPID(d.Name, d.PID, true), how, d.Noticed)
}

func readDeaths(r *region.Region) ([]Death, error) {
	all, err := r.Deaths()
	if err != nil {
		return nil, err
	}
	out := []Death{}
	for _, d := range all {
		held := []DeathHeld{}
		for device, bytes := range d.Held {
			if bytes > 0 {
				held = append(held, DeathHeld{device, bytes})
			}
		}
		out = append(out, Death{timeOf(d.Time), d.Slot, d.PID, d.HostPID, d.Name, timeOf(d.Joined), d.Reaper, d.Noticed(), d.Asleep, held})
	}
	return out, nil
}
