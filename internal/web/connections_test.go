package web

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ration/check/webtest"
	"ration/internal/connlimit"
)

// limited serves a page with a bounded number of connections, and returns its address.
func limited(t *testing.T, most int) string {
	t.Helper()
	page := serve(t, webtest.Machine(1, 1, 1), nil)
	s := httptest.NewUnstartedServer(page.server.Config.Handler)
	s.Listener = connlimit.NewEvicting(s.Listener, most)
	connlimit.Attach(s.Config)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// connect connects, and sends a request or a part of one.
func connect(t *testing.T, address, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		_, err = io.WriteString(c, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Clients that send nothing, send slowly or have no token are closed for one that has it. The
// connections of the page's own user stay.
func TestConnectionsWithoutToken(t *testing.T) {
	const most = 4
	address := limited(t, most)
	get := func(path string) string {
		return fmt.Sprintf("GET /abc/%s HTTP/1.1\r\nHost: localhost\r\nCookie: %s=%s\r\n\r\n", path, cookieName, token)
	}
	status := func(from *bufio.Reader) int {
		t.Helper()
		answer, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	own := connect(t, address, get("style.css")+get(""))
	answers := bufio.NewReader(own)
	if a, b := status(answers), status(answers); a != http.StatusOK || b != http.StatusOK {
		t.Fatalf("the first answers are %d, %d", a, b)
	}
	var strangers []net.Conn
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost:", "POST /abc/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", strings.Replace(get(""), token, "0123", 1)} {
		for range most {
			strangers = append(strangers, connect(t, address, text))
		}
	}
	// A new client with the token is served, and the oldest one without it is closed.
	if got := status(bufio.NewReader(connect(t, address, get("")))); got != http.StatusOK {
		t.Errorf("one who has the token got %d", got)
	}
	_, _ = io.Copy(io.Discard, strangers[0]) // ends when it has been closed
	if _, err := io.WriteString(own, get("")); err != nil {
		t.Fatal(err)
	}
	if got := status(answers); got != http.StatusOK {
		t.Errorf("one who was let in before them got %d", got)
	}
}

// At a public page, clients that do not read their answers keep out nobody.
func TestSlowReaders(t *testing.T) {
	const most = 3
	page := serve(t, webtest.Machine(1, 1, 1), func(o *Options) { o.Public, o.Token, o.ID = true, "", "" })
	pipes := webtest.NewPipes()
	server := &http.Server{Handler: page.server.Config.Handler}
	connlimit.Attach(server)
	defer server.Close()
	go func() { _ = server.Serve(connlimit.NewEvicting(pipes, most)) }()
	var first net.Conn
	for n := range 3 * most {
		c, err := pipes.Unread("/")
		if err != nil {
			t.Fatalf("reader %d was kept out: %v", n, err)
		}
		defer c.Close()
		if n == 0 {
			first = c
		}
	}
	_, _ = io.Copy(io.Discard, first) // ends as that has gone for one of them
}
