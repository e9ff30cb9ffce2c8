package abi

import (
	"testing"

	"ration/check/expect"
)

func TestWordRoundTrip(t *testing.T) {
	for _, c := range []struct {
		units uint64
		slot  int
		seq   uint64
	}{{0, 0, 0}, {MaxUnits, Slots - 1, 1<<WordSeqBits - 1}, {1, 2, 3}} {
		w := MakeLedgerWord(c.units, c.slot, c.seq)
		expect.True(t, w.Units() == c.units && w.Slot() == c.slot && w.Seq() == c.seq,
			"word", c, "came back as", w.Units(), w.Slot(), w.Seq())
	}
	w := MakeLedgerWord(7, 5, 1<<WordSeqBits)
	expect.True(t, w.Seq() == 0 && w.Slot() == 5, "a long sequence spilled into the slot", w.Slot(), w.Seq())
}

func TestPendRoundTrip(t *testing.T) {
	for _, delta := range []int64{0, 1, -1, MaxUnits, -MaxUnits} {
		for _, seq := range []uint64{0, 1, longSeqMask} {
			p := MakePend(seq, delta)
			expect.True(t, p.Seq() == seq && p.Delta() == delta, "pend (", seq, delta, ") came back as (", p.Seq(), p.Delta(), ")")
		}
	}
	expect.Equal(t, NextSeq(longSeqMask), 0, "the sequence does not wrap to zero")
}

func TestUsedRoundTrip(t *testing.T) {
	u := MakeUsed(longSeqMask, MaxUnits)
	expect.True(t, u.Seq() == longSeqMask && u.Units() == MaxUnits, "used came back as (", u.Seq(), u.Units(), ")")
}

func TestSleepRoundTrip(t *testing.T) {
	s := MakeSleep(Waking, true, 1<<50)
	expect.True(t, s.State() == Waking && s.Manual() == 1 && s.Count() == 0, "sleep came back as (", s.State(), s.Manual(), s.Count(), ")")
	s = MakeSleep(Asleep, false, 1<<47+5)
	expect.True(t, s.State() == Asleep && s.Manual() == 0 && s.Count() == 1<<47+5, "sleep came back as (", s.State(), s.Manual(), s.Count(), ")")
	expect.Equal(t, MakeSleep(Awake, false, 0), 0, "a new file's zero is not awake")
}

func TestStatusRoundTrip(t *testing.T) {
	s := MakeStatus(12345678901, SlotActive)
	expect.True(t, s.Gen() == 12345678901 && s.State() == SlotActive, "status came back as (", s.Gen(), s.State(), ")")
	expect.Equal(t, MakeStatus(0, SlotFree), 0, "a new file's zero is not a free slot")
}

func TestWaitPlace(t *testing.T) {
	p := MakeWaitPlace(Slots-1, 1<<PlaceGenBits+5, Devices-1, 1<<PlaceTicketBits+7)
	expect.True(t, p.Owner() == Slots && p.Device() == Devices-1 && p.Ticket() == 7, "place came back as (", p.Owner(), p.Device(), p.Ticket(), ")")
	expect.True(t, p.Of(MakeStatus(5, SlotActive)), "the place is not its process's")
	expect.True(t, !p.Of(MakeStatus(6, SlotActive)), "the place is another process's")
	expect.True(t, !p.Of(MakeStatus(5, SlotFree)), "the place is of a process that has left")
	expect.Equal(t, WaitPlace(0).Owner(), 0, "a new file's zero is not a free entry")
	expect.Equal(t, WaitAllocOf(WaitAllocNone), 0, "none is a time")
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		name           string
		l              Limit
		set, limited   bool
		bytes, ceiling uint64
	}{
		{"zero is not set", 0, false, false, 0, MaxUnits},
		{"none", Unlimited, true, false, 0, MaxUnits},
		{"nothing at all", MakeLimit(0), true, true, 0, 0},
		{"ten gibibytes", MakeLimit(10 << 30), true, true, 10 << 30, 10 << 30 / Unit},
		{"rounded down", MakeLimit(1023), true, true, 512, 1},
		{"more than the ledger holds", MakeLimit(1 << 62), true, true, MaxUnits * Unit, MaxUnits},
	} {
		expect.True(t, c.l.IsSet() == c.set && c.l.Limited() == c.limited && c.l.Bytes() == c.bytes && c.l.Ceiling() == c.ceiling,
			c.name, "set", c.l.IsSet(), "limited", c.l.Limited(), "bytes", c.l.Bytes(), "ceiling", c.l.Ceiling())
	}
}

func TestUnitsFor(t *testing.T) {
	for _, c := range []struct {
		bytes, units uint64
		ok           bool
	}{{0, 0, true}, {1, 1, true}, {512, 1, true}, {513, 2, true}, {MaxUnits * Unit, MaxUnits, true},
		{MaxUnits*Unit + 1, MaxUnits + 1, false}, {1<<64 - 1, 1 << 55, false}} {
		u, ok := UnitsFor(c.bytes)
		expect.True(t, u == c.units && ok == c.ok, c.bytes, "bytes", u, "units", ok)
	}
}

func TestCost(t *testing.T) {
	a, b := [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}, [2]uint64{0x0123456789abcdef, 0xfedcba9876543211}
	c := MakeContextCost(a, 518<<20+1)
	// The same numbers stand in shim/test/costs.c.
	if c != 0x8807f274_00103001 {
		t.Errorf("the word is %#x", uint64(c))
	}
	expect.True(t, c.Of(a) == 518<<20+Unit, "a cost came back as", c.Of(a))
	for _, other := range [][2]uint64{b, {a[1], a[0]}, {0, a[1]}, {}} {
		if n := c.Of(other); n != 0 {
			t.Errorf("a context on device %x is said to take %d", other, n)
		}
	}
	expect.True(t, ContextCost(0).Of(a) == 0 && MakeContextCost(a, 0) == 0 && MakeContextCost(a, (MaxUnits+1)*Unit) == 0,
		"there is a cost where there is none")
	expect.Equal(t, MakeContextCost([2]uint64{}, 1<<20).Of([2]uint64{}), 0,
		"devices without a UUID are told apart by nothing, and share a cost")
}
