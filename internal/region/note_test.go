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
