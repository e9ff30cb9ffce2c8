package processes

import (
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A process that was stopped while it noted another one's change writes nothing when it
// is continued much later: later notes of other processes decide whether a change was
// applied, and must not be overwritten.
func TestLateNote(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		b := join(t, mix, 0, path, mib)
		x := faulty(t, mix, 1, abi.ChangeApplied, 3, "kill")
		v := faulty(t, mix, 0, abi.NoteRead, 1, "stop")
		x.join(path, "x")
		v.join(path, "v")
		x.OK("charge 0 data %d", piece)
		v.fault("charge 0 data %d", piece) // stops, about to note x's first
		x.OK("charge 0 data %d", piece)
		b.OK("charge 0 data %d", piece)    // notes x's second
		x.fault("charge 0 data %d", piece) // dies with its third applied, not booked
		x.Kill()
		b.OK("charge 0 data %d", piece) // notes x's third
		v.Continue()
		v.answers(1)
		b.OK("reap")
		checkUsed(t, path, 3*piece)
		finish(t, path, b, v)
	})
}

// A reaper that was stopped before its last step on a slot does not affect the slot's
// next owner.
func TestLateReaper(t *testing.T) {
	for p := abi.ReapJudged; p <= abi.ReapSettled; p++ {
		t.Run(p.String(), func(t *testing.T) {
			walkMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				a := join(t, mix, 0, path, mib)
				// It dies with a charge that it has announced and not applied, before which a
				// fence is put into the word.
				dead := faulty(t, mix, 1, abi.ChangeAnnounced, 2, "kill")
				dead.join(path, "dead")
				dead.OK("charge 0 data %d", piece)
				dead.fault("charge 0 data %d", piece)
				dead.Kill()

				late := faulty(t, mix, 1, p, 1, "stop")
				late.OK("open %s", path)
				late.fault("reap")
				a.OK("reap")
				// All slots, the dead one's among them, get new owners that hold something.
				heirs := start(t, mix, 0)
				heirs.OK("open %s", path)
				for range 64 {
					heirs.OK("claim heir")
					heirs.OK("charge 0 data %d", abi.Unit)
				}
				late.Continue()
				got := late.Answer()
				expect.True(t, got.Verdict() == "ok" && got.Int("slots") == 0, "too late to reap", got)
				checkUsed(t, path, 64*abi.Unit)
				finish(t, path, heirs, late, a)
			})
		})
	}
}

// A request that was stopped before it read the device's ledger word obeys the limit of
// the moment in which it is continued, not of the moment in which it began.
func TestLateRequest(t *testing.T) {
	for _, p := range []abi.Failpoint{abi.TurnTaken, abi.ChangeAnnounced} {
		t.Run(p.String(), func(t *testing.T) {
			eachMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				operator := join(t, mix, 0, path, mib)
				late := faulty(t, mix, 1, p, 1, "stop")
				late.join(path, "late")
				late.fault("charge 0 data %d", mib)
				operator.OK("limit 0 %d", piece)
				late.Continue()
				late.Answer().want("refused", "a charge beyond the new limit")
				checkUsed(t, path, 0)
			})
		})
	}
}
