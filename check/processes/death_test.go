package processes

import (
	"strings"
	"testing"

	"ration/internal/abi"
	"ration/machine"
)

// Every reader sees which process died, what it held, and how that was noticed: not only
// the process that returned its bytes.
func TestDeathsAreVisible(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		a, v := join(t, mix, 1, path, mib, mib), start(t, mix, 0)
		slot := v.join(path, "victim")
		v.OK("charge 0 data %d", piece)
		v.OK("charge 1 context %d", 2*piece)
		pid := v.PID()
		v.Kill()
		before, err := machine.ReadRegion(path)
		if err != nil || len(before.Deaths) != 0 || before.Died != 0 {
			t.Fatalf("before it is noticed: %+v, %v", before.Deaths, err)
		}
		a.OK("charge 0 data %d", mib) // which needs what it held
		after, err := machine.ReadRegion(path)
		if err != nil || len(after.Deaths) != 1 || after.Died != 1 {
			t.Fatalf("%d deaths: %+v, %v", after.Died, after.Deaths, err)
		}
		d := after.Deaths[0]
		if d.PID != pid || d.Slot != slot || d.Name != "victim" || d.Reaper != a.PID() || d.Joined == 0 || d.Time < d.Joined {
			t.Errorf("the death of %d in slot %d is %+v", pid, slot, d)
		}
		if len(d.Held) != 2 || d.Held[0] != (machine.DeathHeld{Device: 0, Bytes: piece}) || d.Held[1] != (machine.DeathHeld{Device: 1, Bytes: 2 * piece}) {
			t.Errorf("it held %+v", d.Held)
		}
		if !strings.Contains(d.Sentence(), "no process has its PID") {
			t.Error(d.Sentence())
		}
		a.Quit()
		checkEmpty(t, path)
	})
}

// The ring keeps the latest deaths, the newest first.
func TestTheLatestDeathsAreKept(t *testing.T) {
	path := newPath(t)
	mix := goOnly()
	a := join(t, mix, 1, path, mib)
	var pids []int
	for range abi.Deaths + 3 {
		v := join(t, mix, 0, path)
		pids = append(pids, v.PID())
		v.Kill()
		a.OK("reap")
	}
	j, err := machine.ReadRegion(path)
	if err != nil || len(j.Deaths) != abi.Deaths || j.Died != uint64(len(pids)) {
		t.Fatalf("%d of %d deaths, %v", len(j.Deaths), j.Died, err)
	}
	for i, d := range j.Deaths {
		if want := pids[len(pids)-1-i]; d.PID != want {
			t.Errorf("death %d is that of %d, not of %d", i, d.PID, want)
		}
	}
	a.Quit()
}
