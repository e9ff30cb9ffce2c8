// Package processes holds the tests that need many processes: exactly one of them
// initialises a region, the limit is never exceeded, and the death of one at any
// moment takes nothing from the others.
//
//	go test ./check/processes                                   all tests, in a few minutes
//	go test ./check/processes -run Chaos -args -stress 10m      random kills for that long
//	RATION_STRESS=10 go test ./check/processes                  ten times the rounds
//	go test ./check/processes -run Chaos -args -seed 42         the choices of an earlier run
//
// The workers are in check/worker (Go) and check/programs/cworker (C); harness starts and
// kills them; check/observer checks what must be true of a region at every instant.
package processes

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ration/check/harness"
	"ration/check/observer"
	"ration/internal/abi"
)

var (
	stress = flag.Duration("stress", 0, "continue with random kills for this long")
	seed   = flag.Uint64("seed", 0, "seed of the random choices")
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m))
}

// rounds returns n times RATION_STRESS.
func rounds(n int) int {
	if times, err := strconv.Atoi(os.Getenv("RATION_STRESS")); err == nil && times > 0 {
		return n * times
	}
	return n
}

// random returns a source of random choices, and logs how to repeat them.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("choices: -args -seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// newPath returns a path for a new region: in memory if there is such a file system,
// so that the tests do not wait for a disk.
func newPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ration-test-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "region")
}

// start starts worker i of a mix.
func start(t testing.TB, mix harness.Mix, i int, options ...harness.Option) *harness.Worker {
	t.Helper()
	return harness.Start(t, mix.Of(i).Plain, options...)
}

// join starts worker i of a mix and gives it a slot in the region at path, with
// these limits, one for each device.
func join(t testing.TB, mix harness.Mix, i int, path string, limits ...int) *harness.Worker {
	t.Helper()
	w := start(t, mix, i)
	w.OK("open %s%s", path, limitFields(limits...))
	w.OK("claim worker-%d", i)
	return w
}

// limitFields formats limits for the order open.
func limitFields(limits ...int) string {
	var s strings.Builder
	for d, bytes := range limits {
		fmt.Fprintf(&s, " %d=%d", d, bytes)
	}
	return s.String()
}

// balanced checks that every device has granted exactly what its slots hold, and
// returns that, in bytes. No process may change the region meanwhile, and all dead
// ones must have been reaped.
func balanced(t testing.TB, path string) (used [abi.Devices]uint64) {
	t.Helper()
	checker, err := observer.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer checker.Close()
	for d := range used {
		if used[d], err = checker.Balanced(d); err != nil {
			t.Error(err)
		}
	}
	return used
}

// checkEmpty checks that nothing is left in a region that all processes have left: no
// byte is granted, nothing has to be reaped, and every slot can be claimed.
func checkEmpty(t testing.TB, path string) {
	t.Helper()
	w := start(t, harness.GoOnly(), 0)
	w.OK("open %s", path)
	if n := w.OK("reap").Int("slots"); n != 0 {
		t.Errorf("%d slots had to be reaped", n)
	}
	if used := balanced(t, path); used != [abi.Devices]uint64{} {
		t.Errorf("bytes are still granted: %v", used)
	}
	if n := w.OK("claims %d", abi.FenceSlot).Int("slots"); n != abi.FenceSlot {
		t.Errorf("%d of %d slots could be claimed", n, abi.FenceSlot)
	}
	w.Quit()
}
