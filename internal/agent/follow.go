package agent

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"ration/internal/node"
	"ration/machine"
)

// changes tells those who follow that there is a new picture. What they miss meanwhile is in the
// next one they read: a follower that is slow holds up nobody, and nothing waits in a queue.
type changes struct {
	mu     sync.Mutex
	number uint64        // under mu: pictures so far
	next   chan struct{} // under mu: closed when there is another one
}

func newChanges() *changes { return &changes{next: make(chan struct{})} }

func (c *changes) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	close(c.next)
	c.next = make(chan struct{})
}

// latest returns the number of the picture that there is, and a channel that is closed when there
// is another.
func (c *changes) latest() (uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number, c.next
}

// Changed returns a channel that is closed when Machine returns something newer.
func (a *Agent) Changed() <-chan struct{} {
	_, next := a.changes.latest()
	return next
}

// History returns the last minutes of all jobs and devices.
func (a *Agent) History() node.History {
	return a.history.read(func(int) bool { return true })
}

// serveChanges writes the number of the picture, a line each, whenever there is another one: who
// reads it asks for what it wants of it. An empty line says that there is still an agent.
func (a *Agent) serveChanges(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // of the request, which is over
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for line := true; ; {
		number, next := a.changes.latest()
		text := "\n"
		if line {
			text = strconv.FormatUint(number, 10) + "\n"
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write([]byte(text)); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-next:
			line = true
		case <-alive.C:
			line = false
			select {
			case <-next: // both at once
				line = true
			default:
			}
		case <-r.Context().Done():
			return
		}
	}
}

// Changes calls visit at once, and whenever the agent has another picture of the machine, until
// the context ends or the agent is silent (ErrSilent).
func (c *Client) Changes(ctx context.Context, visit func()) error {
	return c.ask(ctx, "/v1/changes", true, func(body io.Reader, alive func()) error {
		lines := scanLines(body)
		for lines.Scan() {
			if alive(); len(lines.Bytes()) > 0 {
				visit()
			}
		}
		return lines.Err()
	})
}

// publicSource is what everybody may know, for the page at the port.
type publicSource struct{ a *Agent }

func (s publicSource) Changed() <-chan struct{}           { return s.a.Changed() }
func (s publicSource) Machine() (*machine.Machine, error) { return Public(s.a.Machine()), nil }
func (s publicSource) History() (node.History, error) {
	return s.a.history.read(func(int) bool { return false }), nil
}
