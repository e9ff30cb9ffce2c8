package connlimit

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
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
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		local = &net.TCPAddr{}
	}
	switch uid, own, err := clientUser(net.TCPAddrFromAddrPort(remote), local); {
	case err != nil:
		return ""
	case own:
		return fmt.Sprint("user ", proc.Account(uid))
	}
	return remote.Addr().Unmap().String()
}
