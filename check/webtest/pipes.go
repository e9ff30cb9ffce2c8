package webtest

import (
	"net"
	"sync"
)

// Pipes is a listener whose connections have no buffer: a client that does not read makes the
// server wait.
type Pipes struct {
	conns chan net.Conn
	end   chan struct{}
	close func()
}

// NewPipes returns a listener.
func NewPipes() *Pipes {
	end := make(chan struct{})
	return &Pipes{make(chan net.Conn), end, sync.OnceFunc(func() { close(end) })}
}

// Dial returns the client's end of a connection that the server has accepted.
func (p *Pipes) Dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// Accept waits for a connection.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

// Close ends it.
func (p *Pipes) Close() error {
	p.close()
	return nil
}

// Addr is no address.
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Unread requests a path, and reads only the beginning of the answer. So the server blocks in
// writing the rest.
func (p *Pipes) Unread(path string) (net.Conn, error) {
	c := p.Dial()
	if _, err := c.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		return c, err
	}
	_, err := c.Read(make([]byte, 1))
	return c, err
}
