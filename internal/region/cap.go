package region

import (
	"sync/atomic"

	"ration/internal/abi"
)

// The cap's word, as far as a process that uses no device needs it: charging the work of a process
// that has died. shim/compute/PROTOCOLS.md, *The cap's word*; the twin of shim/region/cap.c.

const (
	mostDebt = 3600 * 1_000_000_000 // nanoseconds: the largest debt that is kept, whatever the words say
	credit   = 50_000_000           // nanoseconds of unused time that are kept
)

// settleTime charges a job with a cap for the work of a dead process, up to now. One caller takes
// it over; if that one dies before it has charged it, it is lost.
func (r *Region) settleTime(device, slot int, st abi.Status) {
	a := &r.m.Accounts[device][slot]
	since, now := atomic.LoadUint64(&a.Uncharged), Monotonic()
	if since == 0 || atomic.LoadUint64(&a.Gen) != st.Gen() || !atomic.CompareAndSwapUint64(&a.Uncharged, since, 0) {
		return
	}
	point(abi.CapTaken)
	percent := abi.Percent(atomic.LoadUint64(&r.limits.Device[device].ComputeMax))
	if percent == 0 || since >= now {
		return
	}
	c := capWords{&r.m.Compute[device]}
	c.renew()
	if used := c.claim(since, min(now, since+abi.UnchargedNS)); used > 0 {
		c.charge(used, uint64(percent), now)
	}
}

// capWords is the words of a device's cap.
type capWords struct{ *abi.Compute }

// renew clears words that are times of another boot's clock, and then notes this one's. A word that
// was read while the other clock was still noted is of that clock. If another process renews at the
// same time, the values that follow stay.
func (c capWords) renew() {
	before := atomic.LoadUint64(&c.Clock)
	zero := clockZero()
	if sameClock(zero, before) {
		return
	}
	for i := range abi.Parts + 1 {
		word := &c.Due
		if i < abi.Parts {
			word = &c.Parts[i]
		}
		old := atomic.LoadUint64(word)
		if atomic.LoadUint64(&c.Clock) != before {
			return
		}
		atomic.CompareAndSwapUint64(word, old, 0)
	}
	point(abi.CapCleared)
	atomic.CompareAndSwapUint64(&c.Clock, before, zero)
}

// claim claims the time between two instants, and returns how much of it no process had claimed.
func (c capWords) claim(from, to uint64) (claimed uint64) {
	for from < to {
		number := from / abi.PartNS
		end := min((number+1)*abi.PartNS, to)
		claimed += claimPart(&c.Parts[number%abi.Parts], number, end-from)
		from = end
	}
	return claimed
}

func claimPart(word *uint64, number, ns uint64) uint64 {
	for {
		before := abi.TimePart(atomic.LoadUint64(word))
		if before.Number() > number {
			return ns // the ring has no record of a part this old: charge it as measured
		}
		used := uint64(0)
		if before.Number() == number {
			used = before.Used()
		}
		claimed := min(ns, abi.PartNS-min(used, abi.PartNS))
		if atomic.CompareAndSwapUint64(word, uint64(before), uint64(abi.MakeTimePart(number, used+claimed))) {
			return claimed
		}
	}
}

// charge charges time that was claimed. The time is counted first: the due time is bounded by what
// was counted.
func (c capWords) charge(used, percent, now uint64) {
	point(abi.CapMeasured)
	atomic.AddUint64(&c.Used, used)
	point(abi.CapCounted)
	for {
		before := abi.Due(atomic.LoadUint64(&c.Due))
		from := uint64(0)
		if now > used+credit {
			from = now - used - credit
		}
		due := c.bounded(max(c.due(before, percent, now), from)+used*100/percent, percent, now)
		if atomic.CompareAndSwapUint64(&c.Due, uint64(before), uint64(abi.MakeDue(due, int(percent)))) {
			break
		}
	}
	point(abi.CapCharged)
}

// due returns the due time at this cap. If the word was computed with another cap, it converts the
// debt.
func (c capWords) due(word abi.Due, percent, now uint64) uint64 {
	due := min(word.Time(), now+mostDebt)
	if before := uint64(abi.Percent(uint64(word.Cap()))); due > now && before != 0 && before != percent {
		due = now + (due-now)*before/percent
	}
	return c.bounded(due, percent, now)
}

// bounded returns a due time no further ahead than all time that was ever charged would take.
func (c capWords) bounded(due, percent, now uint64) uint64 {
	most := min(atomic.LoadUint64(&c.Used), mostDebt) * 100 / percent
	return min(due, now+min(most, mostDebt))
}
