package usage

import (
	"cmp"
	"slices"
	"time"

	"ration/machine"
)

// What a switch from one context to another costs on an H200, in microseconds: the switch itself, and the beginning of
// the slice, in which the context does no work yet. A context for which nothing was set has the driver's slice.
const (
	switchCost  = 180
	resumeCost  = 40
	driverSlice = 2048
)

// The time of a job beside others is estimated if it is known this well; otherwise it is an upper bound.
const (
	turnError  = 0.02
	turnsApart = 0.01 // the part of a step that other jobs may have in short turns of their own
)

// turns is what is known about a job's turns on a device in one step. The library measures from the beginning of the
// work to its end, so the turns of others are in it, except in the first slice of each period of work.
type turns struct {
	inTurn      uint64 // nanoseconds in the job's own turns, for certain
	least, most turn   // of the looks at which it had work
	unknown     bool   // a slice was not known
	job         machine.JobID
}

// turn is what the contexts of a job that have work take of one round of all contexts, in microseconds.
type turn struct {
	work  float64 // in which their kernels run
	whole float64 // with the switches
}

// noteTurns notes the slices of a job that has worked on a device, and how long it had the device for certain.
func (m *Meter) noteTurns(s Subject, j *machine.Job, d *machine.Device, inTurn uint64) {
	t := m.turns[s]
	if t == nil {
		t = &turns{job: j.ID()}
		m.turns[s] = t
	}
	t.unknown = t.unknown || t.job != j.ID() // several jobs of one name
	t.inTurn = saturate(t.inTurn, inTurn)
	t.note(j, d.Device)
}

// note adds a look at a job's slices on a device.
func (t *turns) note(j *machine.Job, device int) {
	var now turn
	for p := range j.Processes {
		for _, h := range j.Processes[p].Holdings {
			if h.Device != device || h.Compute == nil || h.Compute.Working == 0 {
				continue
			}
			slice := float64(h.Compute.Slice)
			if slice == 0 {
				slice = driverSlice
			}
			t.unknown = t.unknown || h.Compute.State == machine.NotEnforced
			contexts := float64(h.Compute.Working)
			now.work += contexts * max(0, slice-resumeCost)
			now.whole += contexts * (slice + switchCost)
		}
	}
	if now.whole == 0 {
		return
	}
	if t.most.whole == 0 || now.whole < t.least.whole {
		t.least = now
	}
	if now.whole > t.most.whole {
		t.most = now
	}
}

// known reports whether the job had the same slices throughout the step.
func (t *turns) known() bool {
	return t != nil && !t.unknown && t.most.whole > 0 && t.most.whole <= t.least.whole*(1+turnError)
}

// beside is a job's part of a device's time in one step.
type beside struct {
	busy   float64 // it had work, or waited for its turn
	inTurn float64 // the part of it in its own turn, for certain
	turn   turn
}

// had returns how much of a step a job had the device, from least to most. Contexts that have work at the same time
// take turns. It is not known when in the step they had work: the bounds are those for as much and as little at the
// same time as possible.
func (b beside) had(others []beside) (least, most float64) {
	sorted := slices.SortedFunc(slices.Values(others), func(x, y beside) int { return cmp.Compare(y.busy, x.busy) })
	least = b.among(sorted, func(o beside) float64 { return min(1, o.busy/b.busy) })
	most = b.among(sorted, func(o beside) float64 { return max(0, b.busy+o.busy-1) / b.busy })
	return least, most
}

// among returns how much of a step a job had the device if each of the others had work in a part of the time in which
// the job had some. The others are sorted by that part, the largest first, and have work at the same time as far as
// possible.
func (b beside) among(others []beside, part func(beside) float64) float64 {
	had, whole, before := 0.0, b.turn.work, 1.0
	for _, o := range others {
		had += (before - part(o)) * b.turn.work / whole
		if before = part(o); whole == b.turn.work {
			whole = b.turn.whole // nobody switches while the job is alone
		}
		whole += o.turn.whole
	}
	had += before * b.turn.work / whole
	return b.inTurn + (b.busy-b.inTurn)*had
}

// scattered reports whether more than one of some jobs had work in a part of the time only: then it is not known how
// many of them had work at the same time.
func scattered(others []beside) bool {
	n := 0
	for _, o := range others {
		if o.busy > turnError && o.busy < 1-turnError {
			n++
		}
	}
	return n > 1
}

// divide corrects the measured time of the jobs of one device in a step of this length, all of which are measured: it
// removes the turns of the others. Time that is not known well enough stays an upper bound, and is marked as shared.
func (m *Meter) divide(subjects []Subject, step time.Duration) {
	all := make([]beside, len(subjects))
	for i, s := range subjects {
		measured, t := float64(m.period.Sums[s].Measured), m.turns[s]
		if !t.known() || measured == 0 {
			m.markShared(subjects)
			return
		}
		busy := min(1, measured/float64(step))
		all[i] = beside{busy, min(busy, float64(t.inTurn)/float64(step)), t.most}
	}
	for i, s := range subjects {
		var others []beside
		apart := 0.0
		for k, o := range all {
			if k != i {
				others = append(others, o)
				apart += o.inTurn
			}
		}
		least, most := all[i].had(others)
		sums := m.period.Sums[s]
		sums.Measured = min(sums.Measured, uint64(most*float64(step)))
		inTurn := all[i].inTurn >= (1-turnError)*all[i].busy
		if !inTurn && (most-least > turnError*most || apart > turnsApart || scattered(others)) {
			sums.Shared = sums.Measured
		}
		m.period.Sums[s] = sums
	}
}

// markShared marks the measured time of some jobs: turns of others may be in it.
func (m *Meter) markShared(subjects []Subject) {
	for _, s := range subjects {
		sums := m.period.Sums[s]
		sums.Shared = sums.Measured
		m.period.Sums[s] = sums
	}
}
