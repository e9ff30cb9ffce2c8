package region

import (
	"testing"

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
	if w.Slot() != one.Index() {
		t.Fatalf("the word is slot %d's", w.Slot())
	}
	must(t, two.Charge(0, abi.Data, MiB))
	if done := r.m.Accounts[0][one.Index()].Done; done != w.Seq() {
		t.Errorf("done is %d, and change %d was overwritten", done, w.Seq())
	}
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
	if !l.note(old) || *done != before || before == old.Seq() {
		t.Errorf("done was %d, and is %d after a late note of change %d", before, *done, old.Seq())
	}
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
	if n, err := r.Reap(); n != 1 || err != nil {
		t.Fatalf("reaped %d, %v", n, err)
	}
	if r.m.Devices[0].Fences != 1 || r.Used(0) != 0 || r.ledger(0).word() == word {
		t.Errorf("%d fences, %d bytes granted", r.m.Devices[0].Fences, r.Used(0))
	}
}
