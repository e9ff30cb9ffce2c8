package harness

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// envPrivate says that this process has a mount namespace of its own already.
const envPrivate = "RATION_TEST_PRIVATE_MOUNTS"

// PrivateMounts gives root's tests a mount namespace of their own: this process begins anew in
// one. What they mount goes with their last process, however they end, and nothing of it is
// left in the way of those who remove their folders. It is for the beginning of TestMain, and
// does nothing for other users, who cannot mount, and where the kernel allows no namespace:
// tests that mount skip themselves there.
func PrivateMounts() error {
	if os.Geteuid() != 0 || os.Getenv(envPrivate) != "" {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// One thread has the namespace, and exec leaves only that one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return nil
	} else if err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	// Private: what is mounted here is not mounted there as well.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	return fmt.Errorf("beginning anew: %w", unix.Exec(program, os.Args, append(os.Environ(), envPrivate+"=1")))
}

// MountsArePrivate reports whether this process has a mount namespace of its own, apart from
// that of the process that started it.
func MountsArePrivate() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	other, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	return own != other, errors.Join(err, err2)
}
