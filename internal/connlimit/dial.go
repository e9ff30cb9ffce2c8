package connlimit

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// dialPause is how long Dial waits before it tries again.
var dialPause = func() { time.Sleep(10 * time.Millisecond) }

// Dial connects to a Unix socket that every user can connect to. A user who floods it can fill the kernel's list of
// connections that are not accepted yet. The kernel refuses others then, unless they wait, which package net does not.
func Dial(path string, timeout time.Duration) (*net.UnixConn, error) {
	for end := time.Now().Add(timeout); ; dialPause() {
		c, err := net.DialTimeout("unix", path, timeout)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !Full(err) || time.Now().After(end) {
			return nil, err
		}
	}
}

// Full reports whether an error of Dial says that a process listens, and has too many connections to accept.
func Full(err error) bool { return errors.Is(err, unix.EAGAIN) }

// Network returns the network to listen in at an address HOST:PORT. For Go, 0.0.0.0 in "tcp" also means all addresses of IPv6.
func Network(address string) string {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); ip != nil && ip.To4() != nil {
		return "tcp4"
	}
	return "tcp"
}
