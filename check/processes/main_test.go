// Package processes holds the tests that need many processes: exactly one of them
// initialises a region, the limit is never exceeded, and the death of one at any
// moment takes nothing from the others.
//
//	go test ./check/processes                                   all tests, in a few minutes
//	go test -short ./check/processes                            kills and races with one mix of C and Go
//	go test ./check/processes -run Chaos -args -stress 10m      random kills for that long
//	RATION_STRESS=10 go test ./check/processes                  ten times the rounds
//	go test ./check/processes -run Chaos -args -seed 42         the choices of an earlier run
//
// The workers are in check/worker (Go) and check/programs/cworker (C); check/harness starts
// and kills them; check/observer checks what must be true of a region at every instant.
package processes

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
)

var (
	stress = flag.Duration("stress", 0, "continue with random kills for this long")
	seed   = flag.Uint64("seed", 0, "seed of the random choices")
)

const (
	kib   = 1 << 10
	mib   = 1 << 20
	gib   = 1 << 30
	piece = 64 * kib
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run builds the workers, runs the tests, and removes the workers.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ration-workers-")
	if err == nil {
		defer os.RemoveAll(dir)
		// For workers that run as another user.
		err = errors.Join(os.Chmod(dir, 0o755), build(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
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

func openChecker(t testing.TB, path string) *observer.Checker {
	t.Helper()
	c, err := observer.Open(path)
	expect.OK(t, err)
	return c
}

// observing checks a region without pause while a test runs.
type observing struct {
	*observer.Loop
	checker *observer.Checker
}

// observe starts to check the first devices of an existing region, each of which may
// grant at most ceiling bytes.
func observe(t testing.TB, path string, devices int, ceiling uint64) *observing {
	t.Helper()
	checker := openChecker(t, path)
	loop := observer.Start(0, func() (err error) {
		for d := range devices {
			err = errors.Join(err, checker.Check(d, ceiling))
		}
		return err
	})
	t.Cleanup(func() { _, _ = loop.Stop(), checker.Close() })
	return &observing{loop, checker}
}

// mustHold ends the checks, and fails the test if one of them failed or none was made.
func (o *observing) mustHold(t testing.TB) {
	t.Helper()
	expect.Equal(t, o.Stop(), nil)
	t.Logf("observer: %d readings, %d holdings read by best effort", o.checker.Readings, o.checker.BestEffort)
	expect.True(t, o.checker.Readings != 0, "the observer took no reading")
}

// balanced checks that every device has granted exactly what its slots hold, and
// returns that, in bytes. No process may change the region meanwhile, and all dead
// ones must have been reaped.
func balanced(t testing.TB, path string) (used [abi.Devices]uint64) {
	t.Helper()
	checker := openChecker(t, path)
	defer checker.Close()
	for d := range used {
		var err error
		used[d], err = checker.Balanced(d)
		expect.Equal(t, err, nil)
	}
	return used
}

// checkUsed checks that the first device has granted so many bytes, and that each
// device's accounts balance.
func checkUsed(t testing.TB, path string, want uint64) {
	t.Helper()
	expect.Equal(t, balanced(t, path)[0], want, "bytes are granted")
}

// checkEmpty checks that nothing is left in a region that all processes have left: no
// byte is granted, nothing has to be reaped, and every slot can be claimed.
func checkEmpty(t testing.TB, path string) {
	t.Helper()
	w := start(t, goOnly(), 0)
	w.OK("open %s", path)
	w.reaps(0)
	expect.Equal(t, balanced(t, path), [abi.Devices]uint64{}, "bytes are still granted")
	expect.Equal(t, w.OK("claims %d", abi.FenceSlot).Int("slots"), abi.FenceSlot, "slots could be claimed")
	w.Quit()
}
