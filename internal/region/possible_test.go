package region

import (
	"math"
	"os"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// What cannot be is not shown: it would be negative, or more than any device has.
func TestImpossibleWords(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, MiB))
	e, a := &r.m.Slots[s.Index()], &r.m.Accounts[0][s.Index()]
	e.PID, e.UID, r.m.Devices[0].Peak = math.MaxUint64-4, math.MaxUint64, math.MaxUint64
	a.A.Kind[0], a.B.Kind[0] = math.MaxUint64, math.MaxUint64
	v, err := OpenReadOnly(r.path)
	must(t, err)
	defer v.Close()
	driver := func(says uint64) uint64 {
		a.Driver = says
		must(t, v.Refresh())
		n, err := v.Driver(0, s.Index())
		must(t, err)
		return n
	}
	expect.Equal(t, driver(maxBytes+1), 0, "the driver counts")
	must(t, r.NameDevice(0, [2]uint64{1, 1}, 3*MiB))
	expect.Equal(t, driver(3*MiB), 3*MiB, "the driver counts", "of a device of 3 MiB")
	expect.Equal(t, driver(3*MiB+1), 0, "the driver counts", "of a device of 3 MiB")
	must(t, r.NameDevice(1, [2]uint64{1, 2}, math.MaxUint64))
	must(t, v.Refresh())
	n, err := v.Total(1)
	expect.True(t, n == 0 && err == nil, "a device has", n, "(", err, ")")
	p, err := v.Processes()
	must(t, err)
	expect.True(t, len(p) == 1 && p[0].PID == 0 && p[0].UID == -1 && p[0].Seen == os.Getpid(), p)
	h, err := v.Holdings(0, nil)
	must(t, err)
	expect.True(t, len(h) == 1 && h[0].Kind[0] == 0 && h[0].BestEffort && v.Peak(0) == 0, h, "and a peak of", v.Peak(0))
	// Restore these: they are checked when the region is closed.
	e.PID, e.UID, r.m.Devices[0].Peak = uint64(os.Getpid()), uint64(os.Geteuid()), MiB/abi.Unit
	a.A.Kind[0], a.B.Kind[0] = 0, 0
}

// A request that waits for nothing, for more than the device has, or of a device that no process has used, is not one.
func TestImpossibleWaiters(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	must(t, r.NameDevice(0, [2]uint64{1, 1}, 3*MiB))
	gen := abi.Status(r.m.Status[s.Index()]).Gen()
	for i, c := range []struct {
		device int
		units  uint64
	}{{0, 3 * MiB / abi.Unit}, {0, 0}, {0, 3*MiB/abi.Unit + 1}, {0, math.MaxUint64}, {5, 1}} {
		r.m.Header.Waiters[i] = abi.Waiter{Place: uint64(abi.MakeWaitPlace(s.Index(), gen, c.device, uint64(i))), Units: c.units}
	}
	v, err := OpenReadOnly(r.path)
	must(t, err)
	defer v.Close()
	got, err := v.Waiters()
	expect.True(t, err == nil && len(got) == 1 && got[0].Bytes == 3*MiB && got[0].Device == 0, got, err)
}
