package machine

import (
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
)

// The reads of a scanner add up: one that gave up is not forgotten with the next look. That there
// were more of them is no change of the job.
func TestScannerAddsUpReads(t *testing.T) {
	r, _ := scannerAt(t)
	_, s := member(t, "one")
	m, _ := mustScan(t, r)
	first := m.Jobs[0].Reads.Reads
	expect.OK(t, s.Charge(0, abi.Data, 1<<20))
	for _, w := range r.users[ownUser].state.jobs { // there is one; it was just read, and would have to wait
		w.due = time.Time{}
	}
	r.users[ownUser].state.rested = time.Time{}
	m, _ = mustScan(t, r)
	n := m.Jobs[0].Reads.Reads
	expect.True(t, r.readsOf("one") == 2 && first != 0 && n >= 2*first, first, "reads of accounts after the first look", n, "after", r.readsOf("one"))
	more := m.Jobs[0]
	more.Reads = more.Reads.and(Reads{Reads: 1})
	expect.True(t, more.Same(&m.Jobs[0]), "another read is a change of the job")
}
