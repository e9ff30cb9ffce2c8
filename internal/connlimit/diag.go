package connlimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Numbers of <linux/sock_diag.h>, <linux/inet_diag.h> and <net/tcp_states.h>, and sizes of their structures.
const (
	diagByFamily = 20 // the type of a question
	diagRequest  = unix.NLMSG_HDRLEN + 56
	diagAnswer   = unix.NLMSG_HDRLEN + 72
	diagID       = 8 // offset of the addresses in a question, after its header
	stateListen  = 10

	// Offsets in an answer, after its header.
	diagState = 1
	diagUID   = 64
	diagInode = 68
)

var (
	// errGone is returned for a client that has closed its socket. The kernel has no user for it any more.
	errGone = errors.New("the client has closed its socket")
	// errUnknown is returned where the kernel knows no socket, not even those of this process.
	errUnknown = errors.New("the kernel does not list sockets (its module tcp_diag is missing)")
)

// askKernel sends a question about a socket, and returns the answer. Tests replace it.
var askKernel = func(question []byte) (answer []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, question, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	answer = make([]byte, 4<<10)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT) // the kernel has answered before Sendto returned
	return answer[:max(n, 0)], err
}

// findSocket asks the kernel for a TCP socket on this machine, given both its addresses, or else for one that listens at
// local. It returns nil if there is none. It takes the same time however many sockets there are: every user can have many.
func findSocket(local, remote netip.AddrPort) (socket []byte, err error) {
	answer, err := askKernel(diagQuestion(local, remote))
	if err != nil {
		return nil, fmt.Errorf("asking for the user of a socket: %w", err)
	}
	if len(answer) < diagAnswer || binary.NativeEndian.Uint16(answer[4:]) != diagByFamily {
		return nil, nil
	}
	return answer[unix.NLMSG_HDRLEN:], nil
}

// socketUser returns the user of a client's socket.
func socketUser(client, server netip.AddrPort) (uid int, err error) {
	socket, err := findSocket(client, server)
	if err != nil {
		return 0, err
	}
	if socket == nil {
		if own, err := findSocket(server, client); own == nil {
			return 0, errors.Join(errUnknown, err)
		}
		return 0, errGone
	}
	if socket[diagState] == stateListen || binary.NativeEndian.Uint32(socket[diagInode:]) == 0 {
		return 0, errGone // its user would be root
	}
	return int(binary.NativeEndian.Uint32(socket[diagUID:])), nil
}

// diagQuestion returns the message that asks for one socket.
func diagQuestion(local, remote netip.AddrPort) []byte {
	q := make([]byte, diagRequest)
	binary.NativeEndian.PutUint32(q, diagRequest)
	binary.NativeEndian.PutUint16(q[4:], diagByFamily)
	binary.NativeEndian.PutUint16(q[6:], unix.NLM_F_REQUEST)
	body := q[unix.NLMSG_HDRLEN:]
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	body[0] = unix.AF_INET6
	if from.Is4() {
		body[0] = unix.AF_INET
	}
	body[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], ^uint32(0)) // in all states
	id := body[diagID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], from.AsSlice())
	copy(id[20:36], to.AsSlice())
	binary.NativeEndian.PutUint64(id[40:], ^uint64(0)) // without a cookie
	return q
}

// clientUser returns the user of a client, if that is a process of this machine: remote is the client's address, and
// local the server's.
func clientUser(remote, local net.Addr) (uid int, own bool, err error) {
	client, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return 0, false, err
	}
	server, err := netip.ParseAddrPort(local.String())
	switch {
	case !client.Addr().IsLoopback() && client.Addr() != server.Addr():
		return 0, false, nil
	case err != nil:
		return 0, true, err
	}
	uid, err = socketUser(client, server)
	return uid, true, err
}
