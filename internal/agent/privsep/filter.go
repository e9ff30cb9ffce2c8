package privsep

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// The reader needs CAP_DAC_READ_SEARCH to search all folders. The capability also lets it open any file by a
// handle, even outside its root. The kernel has no narrower capability, but that danger has a system call of
// its own, and the filter denies it. It denies as well those that look into other processes, that give
// capabilities in a new namespace, that reach the kernel past the filter, or root's keys, and all by which a
// process comes to a network: the reader gets its sockets from its parent, and accepts.
var denied = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_USERFAULTFD,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BIND, unix.SYS_LISTEN,
}

// fastOpen are the system calls that connect by the flag MSG_FASTOPEN, and which of their arguments that is in.
var fastOpen = map[uint32]uint32{unix.SYS_SENDTO: 3, unix.SYS_SENDMSG: 2, unix.SYS_SENDMMSG: 3}

// Offsets in struct seccomp_data.
const (
	offNumber   = 0
	offArch     = 4
	offFirstArg = 16 // the lower half of the argument: both processors are little-endian
	argSize     = 8
)

// x32Bit is set in the numbers of system calls of the x32 ABI.
const x32Bit = 0x40000000

// newFilter returns the filter for a processor. It denies all system calls of another ABI, such as
// the 32-bit one, because their numbers differ. clone3 fails as on an old kernel, because its flags
// are in memory where the filter cannot see them. clone may not make a namespace, and
// socket makes only Unix sockets, by which user names are looked up, and those that ask the kernel which user a
// connection belongs to.
func newFilter(arch string) ([]unix.SockFilter, error) {
	number, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[arch]
	if !known {
		return nil, fmt.Errorf("there is no filter of system calls for %s", arch)
	}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	result := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	// skip returns an instruction that skips n instructions if a test is true.
	skip := func(test uint16, k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: k, Jt: n}
	}
	// unless returns an instruction that skips n instructions if a test is false.
	unless := func(test uint16, k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: k, Jf: n}
	}
	const (
		deny   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		allow  = unix.SECCOMP_RET_ALLOW
	)
	out := []unix.SockFilter{
		load(offArch), skip(unix.BPF_JEQ, number, 1), result(deny),
		load(offNumber),
	}
	if arch == "amd64" {
		out = append(out, unless(unix.BPF_JGE, x32Bit, 1), result(deny))
	}
	for _, call := range denied {
		out = append(out, unless(unix.BPF_JEQ, call, 1), result(deny))
	}
	// argument ends a call by whether an argument of it passes a test.
	argument := func(call, index uint32, test uint16, k uint32, is, not uint32) {
		out = append(out, unless(unix.BPF_JEQ, call, 4),
			load(offFirstArg+argSize*index), skip(test, k, 1), result(not), result(is))
	}
	argument(unix.SYS_CLONE, 0, unix.BPF_JSET, unix.CLONE_NEWUSER, deny, allow)
	out = append(out, unless(unix.BPF_JEQ, unix.SYS_SOCKET, 7),
		load(offFirstArg), skip(unix.BPF_JEQ, unix.AF_UNIX, 3), unless(unix.BPF_JEQ, unix.AF_NETLINK, 3),
		load(offFirstArg+2*argSize), unless(unix.BPF_JEQ, unix.NETLINK_SOCK_DIAG, 1), result(allow), result(deny))
	for _, call := range slices.Sorted(maps.Keys(fastOpen)) {
		argument(call, fastOpen[call], unix.BPF_JSET, unix.MSG_FASTOPEN, deny, allow)
	}
	return append(out, unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), result(absent), result(allow)), nil
}
