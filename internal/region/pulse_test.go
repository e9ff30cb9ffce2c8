package region

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/safepath"
)

// What was used of a device's time changes the sum where something was granted of the device. The
// parts of time, which are most of a region's first pages, are not read.
func TestPulseSum(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	dir, err := safepath.OpenFolder(filepath.Dir(r.path))
	must(t, err)
	defer unix.Close(dir)
	p, err := OpenPulseAt(dir, filepath.Base(r.path), r.path)
	must(t, err)
	defer p.Close()
	buf := make([]byte, PulseSize)
	last, _, ok, err := p.Sum(buf)
	must(t, err)
	expect.Must(t, ok, "no sum")
	changes := func(what string, want bool) {
		t.Helper()
		sum, _, ok, err := p.Sum(buf)
		must(t, err)
		expect.True(t, ok && (sum != last) == want, what, "changed", sum != last, "want", want)
		last = sum
	}
	changes("nothing", false)
	atomic.StoreUint64(&r.m.Compute[0].Used, 1)
	changes("time of a device of which nothing was granted", false)
	must(t, s.Charge(0, abi.Data, 1024))
	changes("a grant", true)
	for what, word := range map[string]*uint64{"time used": &r.m.Compute[0].Used, "time waited": &r.m.Compute[0].Waited, "debt": &r.m.Compute[0].Due} {
		atomic.AddUint64(word, 4096)
		changes(what, true)
	}
	atomic.AddUint64(&r.m.Compute[0].Parts[3], 1)
	changes("a part of time", false)
	claim(t, r)
	changes("a slot", true)
	atomic.StoreUint64(&r.m.Status[1], uint64(abi.MakeStatus(9, abi.SlotDamaged)))
	changes("the status of the last slot", true)
	atomic.StoreUint64(&r.m.Status[2], uint64(abi.MakeStatus(9, abi.SlotDamaged)))
	changes("the status of a slot that no process ever had", false)
}
