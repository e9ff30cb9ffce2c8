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
	diagID       = 8  // offset of the addresses in a question, after its header
	diagState    = 1  // offsets in an answer, after its header
	diagUID      = 64 //
	diagInode    = 68 //
	stateListen  = 10
)

// errGone is returned for a client that has closed its socket. The kernel has no user for it any more.
var errGone = errors.New("the client has closed its socket")

// socketUser asks the kernel for the user of a TCP socket on this machine, given both its addresses. It takes the
// same time however many sockets there are: every user can have many.
func socketUser(local, remote netip.AddrPort) (uid int, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("asking for the user of a socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagQuestion(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("asking for the user of a socket: %w", err)
	}
	answer := make([]byte, 4<<10)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT) // the kernel has answered before Sendto returned
	if err != nil {
		return 0, fmt.Errorf("asking for the user of a socket: %w", err)
	}
	if n < diagAnswer || binary.NativeEndian.Uint16(answer[4:]) != diagByFamily {
		return 0, errGone
	}
	socket := answer[unix.NLMSG_HDRLEN:]
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
	if body[0] = unix.AF_INET6; from.Is4() {
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
