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
)

// crowded serves a page with a bounded number of connections, and returns its address.
func crowded(t *testing.T, most int) string {
	t.Helper()
	page := serve(t, webtest.Machine(1, 1, 1), nil)
	s := httptest.NewUnstartedServer(page.server.Config.Handler)
	s.Listener = NewCrowd(s.Listener, most)
	Attend(s.Config)
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

// Connections that ask for nothing, are slow in asking, or have no token, are no hindrance to who
// has it: they go, and those of the page's own user stay.
func TestCrowd(t *testing.T) {
	const most = 4
	address := crowded(t, most)
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
	// The last to come is let in, though there is no place; the first one goes.
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

// Where all have been let in, the next is refused, and none of them goes.
func TestCrowdOfViewers(t *testing.T) {
	l := NewCrowd(nil, 2)
	for range 2 {
		a, _ := net.Pipe()
		c := l.admit(a)
		l.introduce(c)
		defer c.Close()
	}
	b, _ := net.Pipe()
	if l.admit(b) != nil {
		t.Error("one more was admitted")
	}
	if l.total != 2 || len(l.strangers) != 0 {
		t.Errorf("%d connections, %d of strangers", l.total, len(l.strangers))
	}
}

// At a page that is for everybody, those who do not read what they asked for keep out nobody else.
func TestCrowdOfSlowReaders(t *testing.T) {
	const most = 3
	page := serve(t, webtest.Machine(1, 1, 1), func(o *Options) { o.Public, o.Token, o.ID = true, "", "" })
	pipes := webtest.NewPipes()
	server := &http.Server{Handler: page.server.Config.Handler}
	Attend(server)
	defer server.Close()
	go func() { _ = server.Serve(NewCrowd(pipes, most)) }()
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
