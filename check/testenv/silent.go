package testenv

import (
	"bufio"
	"net"
	"net/http"
	"testing"
)

// SilentServer accepts connections at a socket and answers each request with a text. Then
// it sends nothing more, and closes no connection until the test has ended.
func SilentServer(t testing.TB, socket, answer string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil { // some clients only connect
				_, _ = c.Write([]byte(answer))
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}
