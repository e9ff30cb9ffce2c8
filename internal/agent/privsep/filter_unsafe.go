package privsep

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readerCaps are the capabilities of the reader.
var readerCaps = []uintptr{unix.CAP_DAC_READ_SEARCH}

// confine drops rights of this thread, and of the processes that it starts, for good: rights of setuid programs
// (no_new_privs), the capabilities that a reader does not have, if this process may drop them, root's keys,
// connections to a network, and the system calls of the filter. If it may not drop capabilities, no_new_privs
// is enough: no program brings one.
func confine() error {
	if err := NewKeyring(); err != nil { // the filter denies the call
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	for c := range uintptr(64) {
		if slices.Contains(readerCaps, c) {
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
	if err := closeNetwork(); err != nil {
		return err
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

// networkVersion is the first version of Landlock that has rules for TCP.
const networkVersion = 4

// rulesetAttr is struct landlock_ruleset_attr as of its fourth version.
type rulesetAttr struct{ fs, net uint64 }

// closeNetwork denies this thread, and the processes that it starts, to bind or connect a TCP socket: also one
// that it has, which a filter cannot tell from a Unix socket. Kernels before 6.7, or without Landlock,
// cannot do that.
func closeNetwork() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < networkVersion {
		return nil
	}
	attr := rulesetAttr{net: unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("making rules for TCP: %w", errno)
	}
	defer unix.Close(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("setting rules for TCP: %w", errno)
	}
	return nil
}
