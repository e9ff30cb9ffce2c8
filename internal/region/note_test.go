package region

import (
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A process that overwrites another one's change has first written down that it was applied.
func TestOverwritingNotes(t *testing.T) {
	r, _ := overHeap(t)
	one, two := claim(t, r), claim(t, r)
	for range 3 {
		must(t, one.Charge(0, abi.Data, MiB))
	}
	w := r.ledger(0).word()
	expect.Must(t, w.Slot() == one.Index(), "the word is slot", w.Slot(), "'s")
	must(t, two.Charge(0, abi.Data, MiB))
	expect.Equal(t, r.m.Accounts[0][one.Index()].Done, w.Seq(), "done is", "and change", "was overwritten")
}

// A process that was stopped before it could note a change, and goes on when the word has moved on, does
// not write its old sequence over a newer one.
func TestLateNoteWritesNothing(t *testing.T) {
	r, _ := overHeap(t)
	one, two := claim(t, r), claim(t, r)
	l := r.ledger(0)
	must(t, one.Charge(0, abi.Data, MiB))
	old := l.word()
	must(t, one.Charge(0, abi.Data, MiB))
	must(t, two.Charge(0, abi.Data, MiB)) // notes the second
	done := &r.m.Accounts[0][one.Index()].Done
	before := *done
	expect.True(t, l.note(old) && *done == before && before != old.Seq(),
		"done was", before, "and is", *done, "after a late note of change", old.Seq())
}

// A charge that a dead process announced and did not apply is fenced off before its sequence is taken:
// should the process live after all, its swap fails.
func TestUnappliedChargeIsFenced(t *testing.T) {
	r, m := overHeap(t)
	dead := claim(t, r)
	must(t, dead.Charge(0, abi.Data, MiB))
	a, word := &r.m.Accounts[0][dead.Index()], r.ledger(0).word()
	a.Pend = uint64(abi.MakePend(abi.NextSeq(abi.Used(a.Used).Seq()), 1))
	m.kill(dead.Index())
	n, err := r.Reap()
	expect.Must(t, n == 1 && err == nil, "reaped", n, err)
	expect.True(t, r.m.Devices[0].Fences == 1 && r.Used(0) == 0 && r.ledger(0).word() != word, r.m.Devices[0].Fences, "fences", r.Used(0), "bytes granted")
}
