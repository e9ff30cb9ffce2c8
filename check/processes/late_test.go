package processes

import (
	"testing"

	"ration/check/harness"
	"ration/internal/abi"
)

// A process that was stopped while it noted another one's change writes nothing when it
// is continued much later: later notes of other processes decide whether a change was
// applied, and must not be overwritten.
func TestLateNote(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		path := newPath(t)
		b := join(t, mix, 0, path, mib)
		x := harness.Start(t, mix.Of(1).Fault, harness.Fault(abi.ChangeApplied, 3, "kill"))
		v := harness.Start(t, mix.Of(0).Fault, harness.Fault(abi.NoteRead, 1, "stop"))
		for _, w := range []*harness.Worker{x, v} {
			w.OK("open %s", path)
			w.OK("claim faulty")
		}
		x.OK("charge 0 data %d", piece)
		stopped := v.StoppedOrDead()
		v.Tell("charge 0 data %d", piece) // stops, about to note x's first
		<-stopped
		x.OK("charge 0 data %d", piece)
		b.OK("charge 0 data %d", piece) // notes x's second
		x.Tell("charge 0 data %d", piece)
		if a, alive := x.AnswerIfAlive(); alive { // dies with its third applied, not booked
			t.Fatal(a)
		}
		x.Kill()
		b.OK("charge 0 data %d", piece) // notes x's third
		v.Continue()
		if a := v.Answer(); a.Verdict() != "ok" {
			t.Error(a)
		}
		b.OK("reap")
		if used := balanced(t, path)[0]; used != 3*piece {
			t.Errorf("%d bytes granted, but %d are held", used, 3*piece)
		}
		b.Quit()
		v.Quit()
		checkEmpty(t, path)
	})
}

// A reaper that was stopped before its last step on a slot does not affect the slot's
// next owner.
func TestLateReaper(t *testing.T) {
	for p := abi.ReapJudged; p <= abi.ReapSettled; p++ {
		t.Run(p.String(), func(t *testing.T) {
			harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
				path := newPath(t)
				a := join(t, mix, 0, path, mib)
				// It dies with a charge that it has announced and not applied, before which a
				// fence is put into the word.
				dead := harness.Start(t, mix.Of(1).Fault, harness.Fault(abi.ChangeAnnounced, 2, "kill"))
				dead.OK("open %s", path)
				dead.OK("claim dead")
				dead.OK("charge 0 data %d", piece)
				died := dead.StoppedOrDead()
				dead.Tell("charge 0 data %d", piece)
				<-died
				dead.Kill()

				late := harness.Start(t, mix.Of(1).Fault, harness.Fault(p, 1, "stop"))
				late.OK("open %s", path)
				stopped := late.StoppedOrDead()
				late.Tell("reap")
				select {
				case <-stopped:
				case answer := <-late.Lines():
					t.Fatalf("%v was not passed: %s", p, answer)
				}
				a.OK("reap")
				// All slots, the dead one's among them, get new owners that hold something.
				heirs := start(t, mix, 0)
				heirs.OK("open %s", path)
				for range 64 {
					heirs.OK("claim heir")
					heirs.OK("charge 0 data %d", abi.Unit)
				}
				late.Continue()
				if got := late.Answer(); got.Verdict() != "ok" || got.Int("slots") != 0 {
					t.Errorf("too late to reap: %s", got)
				}
				if used := balanced(t, path)[0]; used != 64*abi.Unit {
					t.Errorf("%d bytes granted, but %d are held", used, 64*abi.Unit)
				}
				heirs.Quit()
				late.Quit()
				a.Quit()
				checkEmpty(t, path)
			})
		})
	}
}

// A request that was stopped before it read the device's ledger word obeys the limit of
// the moment in which it is continued, not of the moment in which it began.
func TestLateRequest(t *testing.T) {
	for _, p := range []abi.Failpoint{abi.TurnTaken, abi.ChangeAnnounced} {
		t.Run(p.String(), func(t *testing.T) {
			harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
				path := newPath(t)
				operator := join(t, mix, 0, path, mib)
				late := harness.Start(t, mix.Of(1).Fault, harness.Fault(p, 1, "stop"))
				late.OK("open %s", path)
				late.OK("claim late")
				stopped := late.StoppedOrDead()
				late.Tell("charge 0 data %d", mib)
				<-stopped
				operator.OK("limit 0 %d", piece)
				late.Continue()
				if got := late.Answer(); got.Verdict() != "refused" {
					t.Errorf("a charge beyond the new limit: %s", got)
				}
				if used := balanced(t, path)[0]; used != 0 {
					t.Errorf("%d bytes are granted", used)
				}
			})
		})
	}
}
