package region

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
)

// begun makes a region in which another process has come so far, and was stopped there.
func begun(t *testing.T, change func(r *abi.Region)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "region")
	m := new(abi.Region)
	change(m)
	must(t, os.WriteFile(path, regionBytes(m), 0o600))
	return path
}

// A process that finds another one initialising leaves it 5 ms and sleeps meanwhile; then it goes on.
// What the other wrote stands. The clock moves when this process sleeps, and a little with each look.
func TestHelpsAnInitialiser(t *testing.T) {
	now, looks, naps, slept, longest := time.Now(), 0, 0, time.Duration(0), time.Duration(0)
	defer func(n func() time.Time, s func(time.Duration)) { initNow, initSleep = n, s }(initNow, initSleep)
	initNow = func() time.Time { looks++; now = now.Add(100 * time.Nanosecond); return now }
	initSleep = func(d time.Duration) { naps, slept, longest, now = naps+1, slept+d, max(longest, d), now.Add(d) }
	path := begun(t, func(m *abi.Region) {
		m.Header.State, m.Header.Flags, m.Header.Created = abi.StateInProgress, abi.LimitsInside, 4711
		m.Limits.Device[0].Memory = uint64(abi.MakeLimit(10 * MiB))
	})
	r, err := Open(path, Options{Limits: limited(20 * MiB)})
	must(t, err)
	expect.True(t, r.Role() == Helped && r.m.Header.Counters.Helped == 1, "it", r.Role())
	expect.True(t, slept >= 4900*time.Microsecond && slept <= 7*time.Millisecond && longest == time.Millisecond && naps >= 5 && naps <= 20 && looks <= 2*naps+4,
		looks, "looks; slept", slept, naps, "times", longest, "at most")
	if l, err := r.Limit(0); l.Bytes() != 10*MiB || err != nil || r.Created() != 4711 {
		t.Errorf("a limit of %d bytes, created at %d, %v", l.Bytes(), r.Created(), err)
	}
	must(t, r.Close())
	looks, naps = 0, 0
	r, err = Open(path, Options{Limits: limited(20 * MiB)})
	must(t, err)
	defer r.Close()
	expect.True(t, r.Role() == FastPath && naps == 0 && looks == 0 && r.Created() == 4711,
		"the next", r.Role(), looks, "looks", naps, "naps, created at", r.Created())
}
