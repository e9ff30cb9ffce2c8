package machine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/humanfmt"
)

// Refusal is a request that was refused. Sizes are bytes.
type Refusal struct {
	Time   time.Time `json:"at,omitzero"`
	Device int       `json:"device"` // its number in this job
	Slot   int       `json:"slot"`   // slot of the refused process
	PID    int       `json:"pid"`    // PID of the refused process, in its own PID namespace
	Asked  uint64    `json:"asked"`
	Held   uint64    `json:"held"` // by all processes of the job at that time
	Limit  uint64    `json:"limit"`
	Own    uint64    `json:"own"`                          // held by the refused process
	Top    []Holder  `json:"top"`                          // the processes that held most, largest first
	Waited int64     `json:"waited_ns,omitempty"`          // nanoseconds that it waited for memory of the job, at most a day; 0 if it did not wait
	Mutual bool      `json:"waited_for_waiters,omitempty"` // it could not fit while processes that waited as well kept their memory
}

// Holder is a process that held much of a device when a request was refused.
type Holder struct {
	PID   int    `json:"pid"` // in its own PID namespace
	Bytes uint64 `json:"bytes"`
}

// anySlot is passed to processName if the slot is not known.
const anySlot = -1

// processName returns the name of the process that had a PID at a time. It returns "" unless
// exactly one name fits, because PIDs are reused and are not unique across containers. verified
// reports whether the kernel confirms such a process.
func processName(processes []Process, pid, slot int, at time.Time) (name string, verified bool) {
	found := false
	for _, p := range processes {
		if p.PID != pid || p.Joined.After(at) || slot != anySlot && p.Slot != slot {
			continue
		}
		if found && p.Name != name {
			return "", false
		}
		name, verified, found = p.Name, p.Verified && (verified || !found), true
	}
	return name, verified
}

// RequesterName returns the name of the refused process, or "" if it is not in processes.
func (f *Refusal) RequesterName(processes []Process) string {
	name, _ := processName(processes, f.PID, f.Slot, f.Time)
	return name
}

// HolderName returns the name of f.Top[i], or "" if it is not in processes.
func (f *Refusal) HolderName(i int, processes []Process) string {
	name, _ := processName(processes, f.Top[i].PID, anySlot, f.Time)
	return name
}

// Requester returns the name of the refused process, if it is in processes, and its PID. A PID that
// the kernel does not confirm gets a question mark.
func (f *Refusal) Requester(processes []Process) string {
	name, verified := processName(processes, f.PID, f.Slot, f.Time)
	return nameAndPID(name, f.PID, verified)
}

// Holder returns the name and PID of f.Top[i], as Requester does.
func (f *Refusal) Holder(i int, processes []Process) string {
	name, verified := processName(processes, f.Top[i].PID, anySlot, f.Time)
	return nameAndPID(name, f.Top[i].PID, verified)
}

// Free returns how many bytes of the limit were free.
func (f *Refusal) Free() uint64 {
	return f.Limit - min(f.Held, f.Limit)
}

// Sentence says in one line which process was refused, and why. It uses the names of the processes
// in the list. PIDs that the kernel does not confirm get a question mark.
func (f *Refusal) Sentence(processes []Process) string {
	var top []humanfmt.Holder
	listed := false
	for i, h := range f.Top {
		name := f.Holder(i, processes)
		if h.PID == f.PID && h.Bytes == f.Own {
			name, listed = "itself", true
		}
		if i := slices.IndexFunc(processes, func(p Process) bool { return p.PID == h.PID && p.State == Ending }); i >= 0 {
			name += ", which " + processes[i].WhyEnding() + ","
		}
		top = append(top, humanfmt.Holder{Name: name, Bytes: h.Bytes})
	}
	text := f.Requester(processes) + " " + humanfmt.Refusal(f.Asked, f.Held, f.Limit, top)
	if f.Own > 0 && !listed {
		text += fmt.Sprintf("; it held %s itself", humanfmt.Bytes(f.Own))
	}
	if f.Waited > 0 {
		text += fmt.Sprintf("; it waited %s for room", humanfmt.Span(time.Duration(f.Waited)))
	}
	if f.Mutual {
		text += ", and processes whose memory it needed waited, too (start fewer of them at once, or raise the limit)"
	}
	return text
}

// WhyEnding says why a process in state Ending still holds its memory, as in "has ended; its fork
// child, pid 15, has its files of the driver open". These PIDs come from the kernel.
func (p *Process) WhyEnding() string {
	switch len(p.KeptBy) {
	case 0:
		return "is ending: the driver has not freed its memory yet"
	case 1:
		return fmt.Sprintf("has ended; its fork child, pid %d, has its files of the driver open", p.KeptBy[0])
	}
	pids := make([]string, len(p.KeptBy))
	for i, pid := range p.KeptBy {
		pids[i] = strconv.Itoa(pid)
	}
	return fmt.Sprintf("has ended; its fork children, pids %s, have its files of the driver open", strings.Join(pids, ", "))
}

func nameAndPID(name string, pid int, verified bool) string {
	text := humanfmt.Claim(strconv.Itoa(pid), verified)
	if name == "" {
		return "pid " + text
	}
	return name + " (pid " + text + ")"
}

// RepeatedRefusal is a request that was refused several times in a row, because the program tried
// again.
type RepeatedRefusal struct {
	Refusal           // the latest
	Times   int       // at least 1
	First   time.Time // of the earliest
}

// GroupRefusals joins consecutive refusals of the same request by the same process. It expects the
// newest refusal first.
func GroupRefusals(refusals []Refusal) (out []RepeatedRefusal) {
	for _, f := range refusals {
		if n := len(out); n > 0 {
			if last := &out[n-1]; last.PID == f.PID && last.Slot == f.Slot && last.Device == f.Device && last.Asked == f.Asked {
				last.Times, last.First = last.Times+1, f.Time
				continue
			}
		}
		out = append(out, RepeatedRefusal{f, 1, f.Time})
	}
	return out
}
