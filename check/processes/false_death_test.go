package processes

import (
	"fmt"
	"slices"
	"testing"

	"ration/check/expect"
	"ration/check/harness"
	"ration/internal/abi"
)

// ownersPoints are where an owner can be while others take it for dead.
var ownersPoints = []abi.Failpoint{
	abi.TurnTaken, abi.ChangeRead, abi.ChangeAnnounced, abi.NoteRead, abi.ChangeNoted, abi.ChangeApplied, abi.ChangeBooked,
	abi.SeqlockB, abi.SeqlockTurned, abi.SeqlockA, abi.TurnLeft,
}

// A process that has lost its lock is taken for dead by one in another PID namespace,
// which cannot ask for it, while it is in the middle of a change. Whatever it does when
// it goes on, be its slot free by then or another process's: not a byte is lost or
// counted twice, and no other process is told that the region is damaged.
func TestTakenForDeadAtEveryPoint(t *testing.T) {
	needPIDs(t)
	walkMix(t, func(t *testing.T, mix impls) {
		for _, p := range ownersPoints {
			for n := 1; n <= 3; n++ { // its first charge, its second, and a return
				for _, claimed := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v:%d/claimed=%v", p, n, claimed), func(t *testing.T) {
						takenForDead(t, mix, p, n, claimed)
					})
				}
			}
		}
	})
}

// The same while the reaper is in the middle, too: stopped at a step of its own until the
// process it takes for dead has gone on.
func TestTakenForDeadWhileReaped(t *testing.T) {
	needPIDs(t)
	walkMix(t, func(t *testing.T, mix impls) {
		for _, reaping := range []abi.Failpoint{abi.ReapCondemned, abi.ReapFenced, abi.ReapAnnounced, abi.ReapApplied, abi.ReapBooked, abi.ReapSettled} {
			for _, p := range []abi.Failpoint{abi.ChangeRead, abi.ChangeNoted, abi.ChangeApplied} {
				if reaping == abi.ReapFenced && p != abi.ChangeNoted {
					continue // nothing is announced, or it is applied
				}
				t.Run(fmt.Sprintf("%v/%v", reaping, p), func(t *testing.T) {
					d := stopOwner(t, mix, p, 2)
					inside := start(t, mix, 2, harness.NewPIDs)
					reaper := startBeside(t, inside, mix.of(3).fault, fault(reaping, 1, "stop"))
					reaper.OK("open %s", d.path)
					reaper.fault("reap")
					d.goesOn()
					reaper.Continue()
					reaper.answers(1)
					reaper.Quit()
					d.a.OK("reap")
					d.check(0)
					finish(t, d.path, inside)
				})
			}
		}
	})
}

// falseDeath is a process that is stopped in the middle of a change and has lost its
// lock, and one that lives beside it.
type falseDeath struct {
	t    *testing.T
	path string
	a, v *worker
	slot int // of v
}

// stopOwner stops an owner where it passes a failpoint for the n-th time: in its first
// charge, in its second, or in a return.
func stopOwner(t *testing.T, mix impls, p abi.Failpoint, n int) *falseDeath {
	path := newPath(t)
	d := &falseDeath{t: t, path: path, a: join(t, mix, 1, path, mib), v: faulty(t, mix, 0, p, n, "stop")}
	d.slot = d.v.join(path, "v")
	for _, order := range []string{"charge 0 data %d", "charge 0 module %d", "return 0 data %d"} {
		d.a.OK("charge 0 data 1") // so that the word names a change of a
		d.a.OK("return 0 data 1") // and the peak is written: v need ask no process for it
		d.v.OK("lose")            // before each: a process that asks the kernel anything opens the file, and takes its lock, again
		if _, fault := d.v.untilFault(order, piece); fault {
			return d
		}
	}
	t.Fatalf("%v was not passed %d times", p, n)
	return nil
}

// goesOn lets the owner go on. Now or at its next request it gets the error that it has
// lost its slot.
func (d *falseDeath) goesOn() {
	d.t.Helper()
	d.v.Continue()
	got := d.v.Answer()
	expect.True(d.t, got.Verdict() != "error" || got.Code() == "evicted", "continued", got)
	d.v.Ask("charge 0 data 1").want("evicted", "after that")
}

// check checks that a can charge all that the other processes do not hold, to the last
// byte. They hold so many bytes.
func (d *falseDeath) check(held int) {
	d.t.Helper()
	used := balanced(d.t, d.path)
	d.a.OK("charge 0 data %d", mib-int(used[0]))
	d.a.Ask("charge 0 data 1").want("refused", "a byte beyond the limit")
	expect.Equal(d.t, d.a.OK("used 0").Int("bytes"), mib, "bytes are granted")
	d.a.OK("return 0 data %d", mib-held)
	d.v.Kill()
	d.a.Quit()
}

func takenForDead(t *testing.T, mix impls, p abi.Failpoint, n int, claimed bool) {
	d := stopOwner(t, mix, p, n)
	reaper := start(t, mix, 2, harness.NewPIDs)
	reaper.OK("open %s", d.path)
	reaper.reaps(1)
	held := 0
	if claimed {
		for tries := 0; reaper.OK("claim heir").Int("slot") != d.slot; tries++ {
			expect.Must(t, tries != abi.ClaimWindow, "slot", d.slot, "cannot be had")
			reaper.OK("leave")
		}
		reaper.OK("charge 0 context %d", piece)
	}
	d.goesOn()
	if claimed {
		reaper.OK("charge 0 module %d", piece) // its figures are right again
		held = 2 * piece
		want, got := fmt.Sprintf("%d:%d:%d:%d:0:0", d.slot, held, piece, piece), d.a.OK("holdings 0")
		expect.True(t, slices.Contains(got.Fields(), want), "no", want, got)
	}
	d.check(held)
	finish(t, d.path, reaper)
}
