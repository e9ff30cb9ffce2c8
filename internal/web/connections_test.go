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

	"ration/check/expect"
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
	expect.OK(t, err)
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
		expect.OK(t, err)
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	own := connect(t, address, get("style.css")+get(""))
	answers := bufio.NewReader(own)
	a, b := status(answers), status(answers)
	expect.Must(t, a == http.StatusOK && b == http.StatusOK, "the first answers are", a, b)
	var strangers []net.Conn
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost:", "POST /abc/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", strings.Replace(get(""), token, "0123", 1)} {
		for range most {
			strangers = append(strangers, connect(t, address, text))
		}
	}
	// A new client with the token is served, and the oldest one without it is closed.
	expect.Equal(t, status(bufio.NewReader(connect(t, address, get("")))), http.StatusOK, "one who has the token got")
	_, _ = io.Copy(io.Discard, strangers[0]) // ends when it has been closed
	_, err := io.WriteString(own, get(""))
	expect.OK(t, err)
	expect.Equal(t, status(answers), http.StatusOK, "one who was let in before them got")
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
		expect.OK(t, err, "reader", n, "was kept out")
		defer c.Close()
		if n == 0 {
			first = c
		}
	}
	_, _ = io.Copy(io.Discard, first) // ends as that has gone for one of them
}
