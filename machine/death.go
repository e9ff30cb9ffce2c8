package machine

import (
	"fmt"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Death is a process that ended without leaving the job, and whose memory another process
// returned to the job. Sizes are bytes.
type Death struct {
	Time    time.Time   `json:"at,omitzero"` // when it was noticed
	Slot    int         `json:"slot"`        // of the dead process
	PID     int         `json:"pid"`         // in its own PID namespace
	HostPID int         `json:"host_pid"`
	Name    string      `json:"name"` // of its program
	Joined  time.Time   `json:"joined_at,omitzero"`
	Reaper  int         `json:"reaper"`  // PID of the process that noticed it, in that one's PID namespace
	Noticed string      `json:"noticed"` // how
	Held    []DeathHeld `json:"held"`    // what it held, of each device of which it held anything
}

// DeathHeld is what a dead process held of one device.
type DeathHeld struct {
	Device int    `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

// Total returns what the process held of all devices.
func (d *Death) Total() (bytes uint64) {
	for _, h := range d.Held {
		bytes += h.Bytes
	}
	return bytes
}

// Sentence says which process died, what it held, and how that was noticed. Its PID has a question mark:
// nothing confirms it any more.
func (d *Death) Sentence() string {
	return fmt.Sprintf("%s died holding %s, which went back to the job; %s", nameAndPID(d.Name, d.PID, false), humanfmt.Bytes(d.Total()), d.Noticed)
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
		out = append(out, Death{timeOf(d.Time), d.Slot, d.PID, d.HostPID, d.Name, timeOf(d.Joined), d.Reaper, d.Noticed(), held})
	}
	return out, nil
}
