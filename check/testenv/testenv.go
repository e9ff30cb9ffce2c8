// Package testenv finds out what the machine of a test offers, and provides what tests need. A test
// that needs more skips itself, with the reason.
package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
)

// hostPIDs is the inode of the host's PID namespace.
const hostPIDs = 0xEFFFFFFC

// NeedsHost skips a test that compares PIDs with host PIDs, which the driver lists: a process in a
// container does not know them.
func NeedsHost(t testing.TB) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &st); err != nil || st.Ino != hostPIDs {
		t.Skipf("in PID namespace %d, not the host's (%v)", st.Ino, err)
	}
}

// NeedsRoot skips a test that only root can run, with the reason.
func NeedsRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(why)
	}
}

// Made skips a test that needs what make builds or installs, if one of the errors says that
// it is not there. make test has made it all, and says so: then the test fails.
func Made(t testing.TB, errs ...error) {
	t.Helper()
	err := errors.Join(errs...)
	if err != nil && os.Getenv("RATION_TEST_MADE") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skipf("%v (make test builds and installs what tests need)", err)
	}
}

// HasTool skips a test that needs a command which make test installs.
func HasTool(t testing.TB, name string) {
	t.Helper()
	_, err := exec.LookPath(name)
	Made(t, err)
}

// emulated reports whether the tests run in a processor emulator: see check/emulate.
func emulated() bool { return os.Getenv("RATION_TEST_EMULATED") != "" }

// NeedFaultAddress skips a test that needs the address of a fault on a mapping whose file was cut
// short, if the emulator does not provide it: qemu forwards the signal, but without the frame from
// which Go reads the address.
func NeedFaultAddress(t testing.TB) {
	t.Helper()
	if emulated() && !faultAddress(t) {
		t.Skip("the emulator gives no address for a fault on a file that was cut short")
	}
}

// faultAddress faults on a missing page, and reports whether the address is right.
func faultAddress(t testing.TB) (right bool) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "page"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mem) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		fault, ok := recover().(interface{ Addr() uintptr })
		right = ok && fault.Addr() == reflect.ValueOf(mem).Pointer()
	}()
	t.Errorf("a page of an empty file holds %d", mem[0])
	return false
}

// NeedStart skips a test that identifies a process by its start time, if the emulator invents
// /proc/self/stat, so that other processes see another time.
func NeedStart(t testing.TB) {
	t.Helper()
	if !emulated() {
		return
	}
	mine, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	// cat is a program of this machine: it is not emulated.
	kernels, err := exec.Command("cat", fmt.Sprintf("/proc/%d/stat", os.Getpid())).Output()
	if err != nil {
		t.Fatal(err)
	}
	// Qemu writes zeros for values that it does not know, and its own start time, which may be
	// right by chance. The ninth field, a process's flags, is never 0.
	if field(mine, 22) != field(kernels, 22) || field(mine, 9) == "0" {
		t.Skip("the emulator makes up /proc/self/stat, with another start")
	}
}

// field returns field n of a line of /proc/PID/stat, from the third on.
func field(stat []byte, n int) string {
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.Fields(rest)[n-3]
}
