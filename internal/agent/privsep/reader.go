package privsep

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoParent is returned if this process was not started by a parent.
var ErrNoParent = errors.New("this process was not started by an agent")

// Channel is the reader's end of the connection.
type Channel struct {
	Inspector *Inspector
	conn      *net.UnixConn
	ended     chan struct{}

	mu      sync.Mutex
	next    uint64                   // ID of the next request; guarded by mu
	waiting map[uint64]chan<- answer // by ID; guarded by mu
	writing sync.Mutex
}

// Open returns the channel to this process's parent.
func Open() (*Channel, error) {
	for _, fd := range []int{channelFD, SocketFD, lockFD, inspectFD} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, ErrNoParent
		}
	}
	channel, err := connAt(channelFD)
	if err != nil {
		return nil, err
	}
	questions, err := connAt(inspectFD)
	if err != nil {
		return nil, err
	}
	c := newChannel(channel)
	c.Inspector = newInspector(questions)
	return c, nil
}

// connAt returns the connection of a descriptor, which it closes: the connection has its own.
func connAt(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "channel")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, ErrNoParent
	}
	conn, is := c.(*net.UnixConn)
	if !is {
		_ = c.Close()
		return nil, ErrNoParent
	}
	return conn, nil
}

func newChannel(conn *net.UnixConn) *Channel {
	c := &Channel{conn: conn, ended: make(chan struct{}), waiting: map[uint64]chan<- answer{}}
	go c.read()
	return c
}

// Ended returns a channel that is closed when the parent has asked this process to end, or has
// ended.
func (c *Channel) Ended() <-chan struct{} { return c.ended }

// Ready tells the parent that the first scan is done.
func (c *Channel) Ready() { _ = c.send(message{Ready: true}) } // fails if the parent has ended

// Reap asks the parent to run ration reap as the given user, for the regions at paths.
func (c *Channel) Reap(ctx context.Context, paths []string, uid int) error {
	_, err := c.ask(ctx, message{UID: int64(uid), Paths: paths})
	return err
}

// Stop asks the parent to end processes, and returns the PIDs of those that got the signal.
func (c *Channel) Stop(ctx context.Context, s Stop) ([]int, error) {
	a, err := c.ask(ctx, message{UID: int64(s.UID), Paths: []string{s.Region}, Stop: s.Processes, Kill: s.Kill})
	return a.Stopped, err
}

// ask sends a request, and waits for the answer to it.
func (c *Channel) ask(ctx context.Context, m message) (answer, error) {
	done := make(chan answer, 1)
	c.mu.Lock()
	c.next++
	m.ID = c.next
	c.waiting[m.ID] = done
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, m.ID)
		c.mu.Unlock()
	}()
	if err := c.send(m); err != nil {
		return answer{}, err
	}
	select {
	case a := <-done:
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-ctx.Done(): // also when the parent has asked this process to end
		return answer{}, ctx.Err()
	}
}

// send sends a whole message. It waits while the parent is busy; that time is bounded.
func (c *Channel) send(m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(line) >= maxLine {
		return fmt.Errorf("a request of %d bytes: %w", len(line), ErrRefused)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err = c.conn.Write(append(line, '\n'))
	return err
}

// read delivers answers until the parent closes its end.
func (c *Channel) read() {
	defer close(c.ended)
	lines := bufio.NewScanner(c.conn)
	for lines.Scan() {
		var a answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			return
		}
		c.mu.Lock()
		done := c.waiting[a.ID]
		delete(c.waiting, a.ID)
		c.mu.Unlock()
		if done != nil { // otherwise ask has stopped waiting
			done <- a
		}
	}
}
