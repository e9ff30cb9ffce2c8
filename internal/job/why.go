package job

import (
	"fmt"

	"ration/internal/humanfmt"
)

// anySlot is for NameOf where nobody wrote the slot down.
const anySlot = -1

// nameOf is the name of the process that had a PID at a time, if exactly one of
// all can be meant: PIDs come again, and containers have the same ones.
func nameOf(all []Process, pid, slot int, at int64) string {
	name, found := "", false
	for _, p := range all {
		if p.PID != pid || p.Joined > at || slot != anySlot && p.Slot != slot {
			continue
		}
		if found && p.Name != name {
			return ""
		}
		name, found = p.Name, true
	}
	return name
}

// AskerName is the name of the process that was refused, where it is one of all.
func (f *Refusal) AskerName(all []Process) string { return nameOf(all, f.PID, f.Slot, f.Time) }

// HolderName is the name of the i-th of those who held most, where it is one of
// all.
func (f *Refusal) HolderName(i int, all []Process) string {
	return nameOf(all, f.Top[i].PID, anySlot, f.Time)
}

// Free is what was left of the limit.
func (f *Refusal) Free() uint64 {
	if f.Held > f.Limit {
		return 0
	}
	return f.Limit - f.Held
}

// Sentence says in one line, on which a person can act, who was refused and why.
// all are the processes that may be called by their names.
func (f *Refusal) Sentence(all []Process) string {
	var top []humanfmt.Holder
	listed := false
	for i, h := range f.Top {
		who := called(f.HolderName(i, all), h.PID)
		if h.PID == f.PID && h.Bytes == f.Own {
			who, listed = "itself", true
		}
		top = append(top, humanfmt.Holder{Who: who, Bytes: h.Bytes})
	}
	text := called(f.AskerName(all), f.PID) + " " + humanfmt.Refusal(f.Asked, f.Held, f.Limit, top)
	if f.Own > 0 && !listed {
		text += fmt.Sprintf("; it held %s itself", humanfmt.Bytes(f.Own))
	}
	return text
}

func called(name string, pid int) string {
	if name == "" {
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("%s (pid %d)", name, pid)
}

// Spell is a refusal that came several times in a row: programs try again.
type Spell struct {
	Refusal       // the latest
	Times   int   // how often
	First   int64 // when it began, in Unix nanoseconds
}

// Spells gathers refusals, the newest first, that say the same.
func Spells(refusals []Refusal) (out []Spell) {
	for _, f := range refusals {
		if n := len(out); n > 0 {
			if last := &out[n-1]; last.PID == f.PID && last.Slot == f.Slot && last.Device == f.Device && last.Asked == f.Asked {
				last.Times, last.First = last.Times+1, f.Time
				continue
			}
		}
		out = append(out, Spell{f, 1, f.Time})
	}
	return out
}
