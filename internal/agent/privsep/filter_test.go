package privsep

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// call is a system call as a filter sees it.
type call struct {
	number, arch uint32
	flags        uint32 // its first argument
	more         [5]uint32
}

// run returns what a filter says of a call.
func run(t *testing.T, filter []unix.SockFilter, of call) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[offNumber:], of.number)
	binary.LittleEndian.PutUint32(data[offArch:], of.arch)
	binary.LittleEndian.PutUint32(data[offFirstArg:], of.flags)
	for i, arg := range of.more {
		binary.LittleEndian.PutUint32(data[offFirstArg+argSize*(i+1):], arg)
	}
	var a uint32
	for at := 0; at < len(filter); at++ {
		i := filter[at]
		jump := func(is bool) {
			if is {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		}
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[i.K:])
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&i.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			t.Fatalf("instruction %d: %+v", at, i)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// The filter denies what it lists, and all of another kind of programs, whose numbers mean other calls.
func TestFilter(t *testing.T) {
	const deny, absent = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for name, arch := range map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64} {
		filter, err := newFilter(name)
		expect.OK(t, err)
		want := func(of call, want uint32) {
			t.Helper()
			if got := run(t, filter, of); got != want {
				t.Errorf("%s: %+v: %#x, want %#x", name, of, got, want)
			}
		}
		for _, number := range []uint32{ // not the filter's own list, from which one could be missing
			unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PIDFD_GETFD,
			unix.SYS_KCMP, unix.SYS_PERF_EVENT_OPEN, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_UNSHARE, unix.SYS_SETNS,
			unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_USERFAULTFD, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
			unix.SYS_BIND, unix.SYS_LISTEN,
		} {
			want(call{number: number, arch: arch}, deny)
		}
		for _, number := range []uint32{unix.SYS_READ, unix.SYS_OPENAT, unix.SYS_EXECVE, unix.SYS_SETRESUID, unix.SYS_PIDFD_OPEN, unix.SYS_FCNTL} {
			want(call{number: number, arch: arch, flags: unix.CLONE_NEWUSER}, unix.SECCOMP_RET_ALLOW)
			for _, other := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0} {
				want(call{number: number, arch: other}, deny)
			}
		}
		want(call{number: unix.SYS_CLONE, arch: arch, flags: unix.CLONE_VM | unix.CLONE_THREAD}, unix.SECCOMP_RET_ALLOW)
		want(call{number: unix.SYS_CLONE, arch: arch, flags: unix.CLONE_NEWUSER | unix.CLONE_VM}, deny)
		want(call{number: unix.SYS_CLONE3, arch: arch}, absent)
		want(call{number: unix.SYS_SOCKET, arch: arch, flags: unix.AF_UNIX}, unix.SECCOMP_RET_ALLOW)
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET, unix.AF_VSOCK, unix.AF_UNSPEC} {
			want(call{number: unix.SYS_SOCKET, arch: arch, flags: family}, deny)
		}
		for protocol, then := range map[uint32]uint32{unix.NETLINK_SOCK_DIAG: unix.SECCOMP_RET_ALLOW, unix.NETLINK_ROUTE: deny, unix.NETLINK_KOBJECT_UEVENT: deny} {
			want(call{number: unix.SYS_SOCKET, arch: arch, flags: unix.AF_NETLINK, more: [5]uint32{unix.SOCK_DGRAM, protocol}}, then)
		}
		want(call{number: unix.SYS_SOCKET, arch: arch, flags: unix.AF_INET, more: [5]uint32{unix.SOCK_DGRAM, unix.NETLINK_SOCK_DIAG}}, deny)
		for number, at := range map[uint32]int{unix.SYS_SENDTO: 2, unix.SYS_SENDMSG: 1, unix.SYS_SENDMMSG: 2} {
			of := call{number: number, arch: arch}
			of.more[at] = unix.MSG_NOSIGNAL
			want(of, unix.SECCOMP_RET_ALLOW)
			of.more[at] |= unix.MSG_FASTOPEN
			want(of, deny)
		}
		if name == "amd64" {
			want(call{number: x32Bit | unix.SYS_READ, arch: arch}, deny)
		}
	}
	_, err := newFilter("riscv64")
	expect.True(t, err != nil, "there is a filter for a processor whose calls are not known")
}
