package processes

import (
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
	"ration/machine"
)

// heldOf is the sum of what the processes of a job hold of a device.
func heldOf(j machine.Job, device int) (sum uint64) {
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if h.Device == device {
				sum += h.Total
			}
		}
	}
	return sum
}

// What is used of a device is the sum of what its processes hold, in every look, however
// they change meanwhile; or the device is marked.
func TestReadingIsConsistent(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		limits := []int{64 * mib, 64 * mib}
		workers := []*worker{join(t, mix, 0, path, limits...), join(t, mix, 1, path), join(t, mix, 2, path)}
		for i, w := range workers {
			w.OK("charge %d data %d", i%2, piece)
			w.OK("churn 0,1 %d %d", i+1, piece)
		}
		exact := 0
		for range rounds(60) {
			j, err := machine.ReadJob(path)
			expect.OK(t, err)
			for _, d := range j.Devices {
				held := heldOf(j, d.Device)
				expect.True(t, held == d.Used || d.Inexact, "device", d.Device, d.Used, "bytes used", held, "held, and it is not marked")
				if !d.Inexact {
					exact++
				}
			}
		}
		t.Logf("%d of %d looks were exact", exact, rounds(60)*2)
		for _, w := range workers {
			w.OK("stop")
		}
		j, err := machine.ReadJob(path)
		expect.OK(t, err)
		for _, d := range j.Devices {
			held := heldOf(j, d.Device)
			expect.True(t, !d.Inexact && held == d.Used,
				"at rest, device", d.Device, d.Used, "bytes used", held, "held, inexact", d.Inexact)
		}
		quit(workers...)
	})
}

// A look that can never agree is marked: a process died when its charge was booked and not
// yet shown. Once it is reaped, the next look is exact.
func TestInconsistentReadingIsMarked(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		a := join(t, mix, 1, path, mib)
		a.OK("charge 0 data %d", piece)
		v := faulty(t, mix, 0, abi.ChangeBooked, 1, "kill")
		v.join(path, "v")
		v.fault("charge 0 data %d", piece)
		v.Kill()
		for _, inexact := range []bool{true, false} {
			j, err := machine.ReadJob(path)
			expect.Must(t, err == nil && len(j.Devices) == 1, j.Devices, err)
			d := j.Devices[0]
			expect.True(t, d.Inexact == inexact && inexact != (heldOf(j, 0) == d.Used), d.Used, "bytes used", heldOf(j, 0), "held, inexact", d.Inexact)
			a.OK("reap")
		}
		a.Quit()
	})
}

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
		before, err := machine.ReadJob(path)
		expect.Must(t, err == nil && len(before.Deaths) == 0 && before.Died == 0, "before it is noticed", before.Deaths, err)
		a.OK("charge 0 data %d", mib) // which needs what it held
		after, err := machine.ReadJob(path)
		expect.Must(t, err == nil && len(after.Deaths) == 1 && after.Died == 1, after.Died, "deaths", after.Deaths, err)
		d := after.Deaths[0]
		expect.True(t, d.PID == pid && d.Slot == slot && d.Name == "victim" && d.Reaper == a.PID() && !d.Joined.IsZero() && !d.Time.Before(d.Joined),
			"the death of", pid, "in slot", slot, d)
		expect.True(t, len(d.Held) == 2 && d.Held[0] == (machine.DeathHeld{Device: 0, Bytes: piece}) && d.Held[1] == (machine.DeathHeld{Device: 1, Bytes: 2 * piece}),
			"it held", d.Held)
		expect.True(t, strings.Contains(d.Sentence(), "no process has its PID"), d.Sentence())
		finish(t, path, a)
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
	j, err := machine.ReadJob(path)
	expect.Must(t, err == nil && len(j.Deaths) == abi.Deaths && j.Died == uint64(len(pids)), len(j.Deaths), "of", j.Died, "deaths", err)
	for i, d := range j.Deaths {
		want := pids[len(pids)-1-i]
		expect.Equal(t, d.PID, want, "death", i, "is that of another process")
	}
	a.Quit()
}

// A device's peak is what living processes had of it at once: bytes of the dead that no
// process has needed yet are no part of it.
func TestPeaksLeaveOutTheDead(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		peak := func(want uint64) {
			t.Helper()
			r, err := region.OpenReadOnly(path)
			expect.OK(t, err)
			defer r.Close()
			_, got, err := r.Usage(0)
			expect.True(t, got == want && err == nil, "the peak is", got, want, "(", err, ")")
		}
		first, second := join(t, mix, 0, path, 10*mib), join(t, mix, 1, path)
		first.OK("charge 0 data %d", 3*mib)
		second.OK("charge 0 data %d", 2*mib)
		peak(5 * mib)
		first.Kill()
		second.Kill()
		heir := join(t, mix, 2, path)
		heir.OK("charge 0 data %d", 4*mib) // there is room, and the dead have 5 still
		peak(5 * mib)
		heir.OK("charge 0 data %d", 2*mib)
		peak(6 * mib)
		heir.OK("charge 0 overhead %d", 1*mib)
		peak(7 * mib)
		heir.OK("return 0 data %d", 6*mib)
		heir.OK("charge 0 data %d", 6*mib)
		peak(7 * mib)
		finish(t, path, heir)
	})
}
