package processes

import (
	"testing"

	"ration/internal/abi"
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
func TestOnePicture(t *testing.T) {
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
			j, err := machine.ReadRegion(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range j.Devices {
				if held := heldOf(j, d.Device); held != d.Used && !d.Inexact {
					t.Errorf("device %d: %d bytes used, %d held, and it is not marked", d.Device, d.Used, held)
				}
				if !d.Inexact {
					exact++
				}
			}
		}
		t.Logf("%d of %d looks were exact", exact, rounds(60)*2)
		for _, w := range workers {
			w.OK("stop")
		}
		j, err := machine.ReadRegion(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range j.Devices {
			if held := heldOf(j, d.Device); d.Inexact || held != d.Used {
				t.Errorf("at rest, device %d: %d bytes used, %d held, inexact %v", d.Device, d.Used, held, d.Inexact)
			}
		}
		quit(workers...)
	})
}

// A look that can never agree is marked: a process died when its charge was booked and not
// yet shown. Once it is reaped, the next look is exact.
func TestAPictureThatCannotBeWholeIsMarked(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		a := join(t, mix, 1, path, mib)
		a.OK("charge 0 data %d", piece)
		v := faulty(t, mix, 0, abi.ChangeBooked, 1, "kill")
		v.join(path, "v")
		v.fault("charge 0 data %d", piece)
		v.Kill()
		for _, inexact := range []bool{true, false} {
			j, err := machine.ReadRegion(path)
			if err != nil || len(j.Devices) != 1 {
				t.Fatalf("%+v, %v", j.Devices, err)
			}
			if d := j.Devices[0]; d.Inexact != inexact || inexact == (heldOf(j, 0) == d.Used) {
				t.Errorf("%d bytes used, %d held, inexact %v", d.Used, heldOf(j, 0), d.Inexact)
			}
			a.OK("reap")
		}
		a.Quit()
	})
}
