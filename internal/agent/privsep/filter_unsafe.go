package privsep

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readerCaps are the capabilities that the reader keeps.
var readerCaps = []uintptr{unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE}

// confine drops rights of this thread and of all processes that it starts. It cannot be undone. It
// drops the rights of setuid programs (no_new_privs), the capabilities that the reader does not
// need, and the system calls that the filter denies. A process without CAP_SETPCAP cannot drop
// capabilities; then no_new_privs is enough, because no program that it starts can gain one.
func confine() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	for c := range uintptr(64) {
		if c == readerCaps[0] || c == readerCaps[1] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // EINVAL: this was the last capability; EPERM: it lacks CAP_SETPCAP
			break
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	filter, err := newFilter(runtime.GOARCH)
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The kernel copies the filter.
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("setting the filter of system calls: %w", err)
	}
	runtime.KeepAlive(filter)
	return nil
}
