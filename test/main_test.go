// Package test holds what can only be shown with many processes: that one of
// them initialises, that the limit is never passed, and that death at any moment
// costs the others nothing.
//
//	go test ./test/...                                   all of it, in a few minutes
//	go test ./test/... -run Chaos -args -stress 10m      random kills for that long
//	RATION_STRESS=10 go test ./test/...                  ten times the rounds
//	go test ./test/... -run Chaos -args -seed 42         the choices of an earlier run
//
// The workers are in test/worker; harness starts and kills them; watch says what
// must be true of a region whenever somebody looks.
package test

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

	"ration/internal/abi"
	"ration/test/harness"
	"ration/test/watch"
)

var (
	stress = flag.Duration("stress", 0, "go on with random kills for this long")
	seed   = flag.Uint64("seed", 0, "make the random choices of the run with this seed")
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m))
}

// rounds is n, times RATION_STRESS.
func rounds(n int) int {
	if times, err := strconv.Atoi(os.Getenv("RATION_STRESS")); err == nil && times > 0 {
		return n * times
	}
	return n
}

// random makes the choices of a test, and says how to have them again.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("choices: -args -seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// newPath is where a region can be made: in memory, where there is such a file
// system, so that the tests do not wait for a disk.
func newPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ration-test-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "region")
}

// start starts worker i of a crew.
func start(t testing.TB, crew harness.Crew, i int, options ...harness.Option) *harness.Worker {
	t.Helper()
	return harness.Start(t, crew.Of(i).Plain, options...)
}

// join starts worker i of a crew and gives it a slot in the region at path, with
// these limits, one for each device.
func join(t testing.TB, crew harness.Crew, i int, path string, limits ...int) *harness.Worker {
	t.Helper()
	w := start(t, crew, i)
	w.OK("open %s%s", path, bring(limits...))
	w.OK("claim worker-%d", i)
	return w
}

// bring writes limits as an order wants them.
func bring(limits ...int) string {
	var s strings.Builder
	for d, bytes := range limits {
		fmt.Fprintf(&s, " %d=%d", d, bytes)
	}
	return s.String()
}

// agree checks that every device has granted exactly what its slots hold, and
// returns that. The region is at rest, the dead have been reaped.
func agree(t testing.TB, path string) (used [abi.Devices]uint64) {
	t.Helper()
	eye, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer eye.Close()
	for d := range used {
		if used[d], err = eye.Books(d); err != nil {
			t.Error(err)
		}
	}
	return used
}

// pristine checks that nothing is left in a region that everybody has left: no
// byte is granted, and every slot can be claimed.
func pristine(t testing.TB, path string) {
	t.Helper()
	w := start(t, harness.Native(), 0)
	w.OK("open %s", path)
	if n := w.OK("reap").Int("slots"); n != 0 {
		t.Errorf("%d slots had to be reaped", n)
	}
	if used := agree(t, path); used != [abi.Devices]uint64{} {
		t.Errorf("bytes are still granted: %v", used)
	}
	if n := w.OK("claims %d", abi.Slots).Int("slots"); n != abi.Slots {
		t.Errorf("%d slots could be claimed, of %d", n, abi.Slots)
	}
	w.Quit()
}
