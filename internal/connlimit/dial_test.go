package connlimit

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// A client waits while others have filled the list of connections that a service has not accepted yet.
func TestDialFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	expect.OK(t, err)
	defer unix.Close(fd)
	expect.OK(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	expect.OK(t, unix.Listen(fd, 1))
	for full := false; !full; {
		c, err := net.Dial("unix", path)
		if full = err != nil; full {
			expect.Must(t, Full(err), err)
			continue
		}
		defer c.Close()
	}
	defer func(was func()) { dialPause = was }(dialPause)
	waits := 0
	dialPause = func() {
		if waits++; waits == 3 {
			accepted, _, err := unix.Accept(fd)
			expect.OK(t, err)
			expect.OK(t, unix.Close(accepted))
		}
	}
	c, err := Dial(path, time.Minute)
	expect.OK(t, err)
	defer c.Close()
	expect.Equal(t, waits, 3)

	_, err = Dial(path, time.Millisecond)
	expect.True(t, Full(err), "it waits for ever", err)
	_, err = Dial(path+"-missing", time.Minute)
	expect.True(t, err != nil && !Full(err), err)
}

// An address of IPv4 is served in IPv4 only, and shown as it was given.
func TestNetwork(t *testing.T) {
	l, err := net.Listen(Network("0.0.0.0:0"), "0.0.0.0:0")
	expect.OK(t, err)
	defer l.Close()
	expect.True(t, strings.HasPrefix(l.Addr().String(), "0.0.0.0:"), l.Addr())
	for _, address := range []string{"", ":80", "[::]:80", "[::1]:80", "localhost:80"} {
		expect.Equal(t, Network(address), "tcp", address)
	}
}
