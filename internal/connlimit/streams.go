package connlimit

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"

	"ration/internal/proc"
)

// Streams bounds how many connections stay open. If there are too many, the oldest one ends of the client
// that has most, unless the new one's client has as many. So no client keeps others out.
type Streams struct {
	most     int
	clientOf func(r *http.Request) string // ClientOf, except in tests

	mu   sync.Mutex
	open []*stream // guarded by mu: the oldest first
}

type stream struct {
	client string
	ended  chan struct{} // closed if it has to end for another one
}

// NewStreams returns a bound.
func NewStreams(most int) *Streams { return &Streams{most: most, clientOf: ClientOf} }

// Enter counts the connection of a request. ended is closed when it has to end; call leave then. ok is false
// if there are too many.
func (s *Streams) Enter(r *http.Request) (ended <-chan struct{}, leave func(), ok bool) {
	client := s.clientOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= s.most && !s.evict(client) {
		return nil, nil, false
	}
	n := &stream{client, make(chan struct{})}
	s.open = append(s.open, n)
	return n.ended, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(n)
	}, true
}

// evict ends the oldest stream of the client that has most, if client has fewer even with a new one. The
// caller holds mu.
func (s *Streams) evict(client string) bool {
	count, most := map[string]int{}, ""
	for _, n := range s.open {
		if count[n.client]++; count[n.client] > count[most] {
			most = n.client
		}
	}
	if count[client]+1 > count[most] || most == client {
		return false
	}
	for _, n := range s.open {
		if n.client == most {
			s.remove(n)
			close(n.ended)
			return true
		}
	}
	return false
}

func (s *Streams) remove(n *stream) {
	for i := range s.open {
		if s.open[i] == n {
			s.open = append(s.open[:i:i], s.open[i+1:]...)
			return
		}
	}
}

// ClientOf returns by what the client of a request counts: the user, if the client is a process of this
// machine, or else the address. Clients on this machine whose user cannot be found count as one.
func ClientOf(r *http.Request) string {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	if !remote.Addr().IsLoopback() {
		return remote.Addr().Unmap().String()
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return ""
	}
	for _, path := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		if f, err := os.Open(path); err == nil {
			uid, found := socketUser(f, remote, at)
			_ = f.Close()
			if found {
				return fmt.Sprint("user ", proc.Account(uid))
			}
		}
	}
	return ""
}

// maxSockets bounds how many lines of the kernel's list are read: every user can have many sockets.
const maxSockets = 1 << 16

// socketUser finds the user of the socket with a local and a remote address in the kernel's list.
func socketUser(list io.Reader, local, remote netip.AddrPort) (uid int, found bool) {
	want := []string{procAddr(local, false) + " " + procAddr(remote, false), procAddr(local, true) + " " + procAddr(remote, true)}
	lines := bufio.NewScanner(list)
	for n := 0; n < maxSockets && lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) < 8 {
			continue
		}
		if pair := f[1] + " " + f[2]; pair == want[0] || pair == want[1] {
			_, err := fmt.Sscan(f[7], &uid)
			return uid, err == nil
		}
	}
	return 0, false
}

// procAddr writes an address as /proc/net/tcp does, or as /proc/net/tcp6 with six: each word of 32 bits in
// the order of this machine.
func procAddr(a netip.AddrPort, six bool) string {
	var out strings.Builder
	bytes := a.Addr().Unmap().AsSlice()
	if six {
		long := a.Addr().As16()
		bytes = long[:]
	}
	for ; len(bytes) >= 4; bytes = bytes[4:] {
		fmt.Fprintf(&out, "%08X", binary.NativeEndian.Uint32(bytes))
	}
	fmt.Fprintf(&out, ":%04X", a.Port())
	return out.String()
}
