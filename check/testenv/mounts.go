package testenv

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// envPrivate says that this process has a mount namespace of its own already.
const envPrivate = "RATION_TEST_PRIVATE_MOUNTS"

// PrivateMounts gives root's tests a mount namespace of their own, by executing this program again
// in one. Their mounts end with their last process, however the tests end, so no mount prevents the
// removal of their folders. Call it at the beginning of TestMain. It does nothing for other users,
// which cannot mount, nor if the kernel allows no namespace; then tests that mount skip themselves.
func PrivateMounts() error {
	if os.Geteuid() != 0 || os.Getenv(envPrivate) != "" {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// Only this thread has the namespace, and exec keeps only this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return nil
	} else if err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	// Private: mounts made here do not appear in the original namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	return fmt.Errorf("executing the tests again: %w", unix.Exec(program, os.Args, append(os.Environ(), envPrivate+"=1")))
}

// MountsArePrivate reports whether this process has a mount namespace of its own, apart from
// that of the process that started it.
func MountsArePrivate() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	other, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	return own != other, errors.Join(err, err2)
}
