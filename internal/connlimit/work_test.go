package connlimit

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// limiterAt returns a limiter with a clock of its own, which only a user's waits and the test move.
func limiterAt(perUser, total int) (l *Limiter, clock *time.Time) {
	now := time.Unix(1e9, 0)
	l = New(perUser, total)
	l.account = func(uid int) int { return uid }
	l.now = func() time.Time { return now }
	l.sleep = func(d time.Duration) { now = now.Add(d) }
	return l, &now
}

// However many requests a user makes, they get a part of a processor's time. Another user's first request does
// not wait for them, and root's requests have no bound.
func TestRequestsAreBounded(t *testing.T) {
	l, clock := limiterAt(4, 16)
	eve, ada, root := l.admit(7), l.admit(8), l.admit(0)
	began := *clock
	const requests = 5000
	for range requests {
		eve.Begin()
	}
	least := requests*requestCost*workShare - workShare*workAhead
	expect.True(t, clock.Sub(began) >= least && clock.Sub(began) < least+time.Second, requests, "requests took", clock.Sub(began))
	before := *clock
	ada.Begin()
	for range requests {
		root.Begin()
	}
	expect.Equal(t, clock.Sub(before), 0)
	eve.charge(workAhead) // one long request
	eve.Begin()
	expect.True(t, clock.Sub(before) >= workShare*workAhead, "the next one waited", clock.Sub(before))
}

// A user that keeps reconnecting is refused after a while, even with one connection at a time. Its debt
// outlives its connections, and is forgotten once it is paid.
func TestConnectionsAreBounded(t *testing.T) {
	l, clock := limiterAt(4, 16)
	admitted := 0
	for range 10000 {
		if u := l.admit(7); u != nil {
			admitted++
			u.release()
		}
	}
	most := int((workAhead + maxDebt/workShare) / requestCost)
	expect.True(t, admitted > most/2 && admitted <= most+1, admitted, "connections at once")
	expect.True(t, l.admit(8) != nil, "another user is kept out")
	*clock = clock.Add(time.Hour)
	l.admit(9)
	expect.True(t, l.users[7] == nil && l.users[8] != nil, "users are", l.users)
	expect.True(t, l.admit(7) != nil, "a user is never admitted again")
}

// Answers that a user does not read take a bounded part of the memory; another user's answer does not wait.
func TestUnsentAnswersAreBounded(t *testing.T) {
	l, _ := limiterAt(4, 16)
	eve, ada := l.admit(7), l.admit(8)
	first, second := eve.Hold(2*maxUnsent), make(chan func()) // one may be longer
	go func() { second <- eve.Hold(1) }()
	ada.Hold(maxUnsent)()
	select {
	case <-second:
		t.Error("too much is held")
	case <-time.After(20 * time.Millisecond):
	}
	first()
	(<-second)()
	expect.Equal(t, eve.unsent, 0)
}

// One user fills neither the log nor the other's part of it, and the log says how many lines were left out.
func TestLines(t *testing.T) {
	var left []string
	l := NewLines(3, time.Minute, func(owner string, n int) { left = append(left, owner+strings.Repeat("!", n)) })
	now, written := time.Unix(1e9, 0), 0
	for range 5 {
		if l.Allow(7, "eve", now) {
			written++
		}
	}
	expect.True(t, written == 3 && l.Allow(8, "ada", now) && len(left) == 0, written, left)
	l.Flush(now.Add(time.Minute))
	expect.Equal(t, strings.Join(left, " "), "eve!!")
	expect.True(t, l.Allow(7, "eve", now.Add(time.Minute)), "nothing in the next minute")
	for range 3 {
		l.Allow(7, "eve", now.Add(time.Minute))
	}
	l.Close()
	expect.Equal(t, strings.Join(left, " "), "eve!! eve!")
}

// A client that has all streams loses one to another client, and gets none of the other's.
func TestStreams(t *testing.T) {
	s := NewStreams(4)
	s.clientOf = func(r *http.Request) string { return r.URL.Path }
	enter := func(client string) (<-chan struct{}, func(), bool) {
		return s.Enter(httptest.NewRequest("GET", "/"+client, nil))
	}
	var ended []<-chan struct{}
	for range 4 {
		e, _, ok := enter("eve")
		expect.Must(t, ok, "a stream is refused")
		ended = append(ended, e)
	}
	_, _, ok := enter("eve")
	expect.True(t, !ok, "a fifth stream of one client")
	for range 2 {
		_, _, ok = enter("ada")
		expect.Must(t, ok, "another client is refused")
	}
	_, _, ok = enter("ada")
	expect.True(t, !ok && len(s.open) == 4, "one client has more than its part", len(s.open))
	for i, e := range ended {
		select {
		case <-e:
			expect.True(t, i < 2, "stream", i, "has ended")
		default:
			expect.True(t, i >= 2, "stream", i, "has not ended")
		}
	}
	_, leave, ok := enter("bob")
	expect.Must(t, ok, "a third client is refused")
	leave()
	leave()
	expect.Equal(t, len(s.open), 3)
}

// A client on this machine is known by its user, whichever way it connects.
func TestClientOf(t *testing.T) {
	clients := make(chan string, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { clients <- ClientOf(r) })
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // without IPv6
		}
		go http.Serve(l, handler)
		answer, err := http.Get("http://" + l.Addr().String())
		expect.OK(t, err)
		answer.Body.Close()
		expect.Equal(t, <-clients, "user "+strconv.Itoa(os.Getuid()))
		l.Close()
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "192.0.2.7:1234"
	expect.Equal(t, ClientOf(r), "192.0.2.7")
	r.RemoteAddr = "127.0.0.1:1"
	expect.Equal(t, ClientOf(r), "")
}

// At a port a user of this machine has as many connections as the limiter allows. A client that has closed its
// socket, for which the kernel has no user any more, does not count as root.
func TestListenTCP(t *testing.T) {
	l, _ := limiterAt(2, 16)
	l.account = func(int) int { return 7 } // not root, which has no bound
	port, err := net.Listen("tcp", "127.0.0.1:0")
	expect.OK(t, err)
	defer port.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", port.Addr().String())
		expect.OK(t, err)
		return c
	}
	gone := dial()
	expect.OK(t, gone.Close())
	reset := dial()
	expect.OK(t, errors.Join(reset.(*net.TCPConn).SetLinger(0), reset.Close()))
	var clients []net.Conn
	for range 3 {
		clients = append(clients, dial())
		defer clients[len(clients)-1].Close()
	}
	admitting := ListenTCP(port, l)
	for _, client := range clients[:2] {
		c, err := admitting.Accept()
		expect.OK(t, err)
		defer c.Close()
		expect.Equal(t, c.RemoteAddr().String(), client.LocalAddr().String())
		expect.Equal(t, c.(*Conn).UID, os.Getuid())
	}
	closed := make(chan error, 1)
	go func() {
		_, err := clients[2].Read(make([]byte, 1))
		closed <- err
		_ = port.Close()
	}()
	c, err := admitting.Accept()
	expect.True(t, err != nil && c == nil, "a third connection of a user")
	expect.True(t, <-closed != nil, "it is not closed")
}

// Where the kernel has no list of sockets, a client of this machine is served as one of another: its bounds are missing, and
// not the port.
func TestKernelWithoutListOfSockets(t *testing.T) {
	for _, c := range []struct {
		answer []byte
		err    error
	}{{make([]byte, unix.NLMSG_HDRLEN+4), nil}, {nil, unix.EPROTONOSUPPORT}} {
		real := askKernel
		t.Cleanup(func() { askKernel = real })
		askKernel = func([]byte) ([]byte, error) { return c.answer, c.err }
		socket, err := net.Listen("tcp", "127.0.0.1:0")
		expect.OK(t, err)
		defer socket.Close()
		client, err := net.Dial("tcp", socket.Addr().String())
		expect.OK(t, err)
		defer client.Close()
		expect.OK(t, socket.(*net.TCPListener).SetDeadline(time.Now().Add(10*time.Second)))
		served, err := ListenTCP(socket, New(0, 0)).Accept()
		expect.Must(t, err == nil, "it is not served:", err)
		_, bounded := served.(*Conn)
		expect.True(t, !bounded && served.Close() == nil, "it has bounds")
	}
}

// What is of use to all is not charged to the user whose request it is a part of.
func TestFree(t *testing.T) {
	l, clock := limiterAt(4, 16)
	eve := l.admit(7)
	wait := func() { time.Sleep(20 * time.Millisecond) }
	waited := func(work func()) time.Duration {
		began := *clock
		for range 30 {
			eve.Do(work)
		}
		return clock.Sub(began)
	}
	free, charged := waited(func() { eve.Free(wait) }), waited(wait)
	expect.True(t, free < charged/2 && charged > time.Second, "it waited", free, "and with a charge", charged)
	var nobody *User
	nobody.Free(wait)
}
