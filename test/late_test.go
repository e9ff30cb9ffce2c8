package test

import (
	"testing"

	"ration/internal/abi"
	"ration/test/harness"
)

// A process that was stopped while it wrote down another one's change writes
// nothing when it is continued long after: what others have written down since
// is all that tells a change that happened from one that did not.
func TestLateNote(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		path := newPath(t)
		b := join(t, crew, 0, path, mib)
		x := harness.Start(t, crew.Of(1).Fault, harness.Fault(abi.ChangeApplied, 3, "kill"))
		v := harness.Start(t, crew.Of(0).Fault, harness.Fault(abi.NoteRead, 1, "stop"))
		for _, w := range []*harness.Worker{x, v} {
			w.OK("open %s", path)
			w.OK("claim fated")
		}
		x.OK("charge 0 data %d", piece)
		stopped := v.Fate()
		v.Send("charge 0 data %d", piece) // stops, about to note x's first
		<-stopped
		x.OK("charge 0 data %d", piece)
		b.OK("charge 0 data %d", piece) // notes x's second
		x.Send("charge 0 data %d", piece)
		if a, alive := x.Hear(); alive { // dies with its third applied, not booked
			t.Fatal(a)
		}
		x.Kill()
		b.OK("charge 0 data %d", piece) // notes x's third
		v.Thaw()
		if a := v.Answer(); a.Verdict() != "ok" {
			t.Error(a)
		}
		b.OK("reap")
		if used := agree(t, path)[0]; used != 3*piece {
			t.Errorf("%d bytes granted where %d are held", used, 3*piece)
		}
		b.Quit()
		v.Quit()
		pristine(t, path)
	})
}

// A reaper that was stopped before its last step on a slot does nothing to the
// slot's next owner.
func TestLateReaper(t *testing.T) {
	for p := abi.ReapJudged; p <= abi.ReapSettled; p++ {
		t.Run(p.String(), func(t *testing.T) {
			harness.Crews(t, func(t *testing.T, crew harness.Crew) {
				path := newPath(t)
				a := join(t, crew, 0, path, mib)
				dead := join(t, crew, 1, path)
				dead.OK("charge 0 data %d", piece)
				dead.Kill()

				late := harness.Start(t, crew.Of(1).Fault, harness.Fault(p, 1, "stop"))
				late.OK("open %s", path)
				stopped := late.Fate()
				late.Send("reap")
				<-stopped
				a.OK("reap")
				// Every slot, the dead one's among them, gets a new owner that holds
				// something.
				heirs := start(t, crew, 0)
				heirs.OK("open %s", path)
				for range 64 {
					heirs.OK("claim heir")
					heirs.OK("charge 0 data %d", abi.Unit)
				}
				late.Thaw()
				if got := late.Answer(); got.Verdict() != "ok" || got.Int("slots") != 0 {
					t.Errorf("too late to reap: %s", got)
				}
				if used := agree(t, path)[0]; used != 64*abi.Unit {
					t.Errorf("%d bytes granted where %d are held", used, 64*abi.Unit)
				}
				heirs.Quit()
				late.Quit()
				a.Quit()
				pristine(t, path)
			})
		})
	}
}

// A request that was stopped before it looked at the device's word goes by the
// limit of the moment in which it is continued, not by the one it came with.
func TestLateRequest(t *testing.T) {
	for _, p := range []abi.Failpoint{abi.TurnTaken, abi.ChangeAnnounced} {
		t.Run(p.String(), func(t *testing.T) {
			harness.Crews(t, func(t *testing.T, crew harness.Crew) {
				path := newPath(t)
				operator := join(t, crew, 0, path, mib)
				late := harness.Start(t, crew.Of(1).Fault, harness.Fault(p, 1, "stop"))
				late.OK("open %s", path)
				late.OK("claim late")
				stopped := late.Fate()
				late.Send("charge 0 data %d", mib)
				<-stopped
				operator.OK("limit 0 %d", piece)
				late.Thaw()
				if got := late.Answer(); got.Verdict() != "refused" {
					t.Errorf("a charge beyond the limit of the moment: %s", got)
				}
				if used := agree(t, path)[0]; used != 0 {
					t.Errorf("%d bytes are granted", used)
				}
			})
		})
	}
}
