package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/fleet"
	"ration/internal/node"
	"ration/machine"
)

// Update is the machine, and the events since the last update. Neither is modified later.
type Update struct {
	Machine *machine.Machine
	Events  []machine.Event // in the first update: all events that are kept
}

// Watch returns an Update at once and then one for each new snapshot, until the context ends. A
// slow reader skips to the latest snapshot.
func (a *Agent) Watch(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		for number := uint64(0); ; {
			_, next := a.feed.Latest()
			u := Update{Machine: a.Machine()}
			u.Events, number = a.events.since(number)
			if !yield(u, nil) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-next:
			}
		}
	}
}

// History returns the history of the last minutes, with all jobs and devices.
func (a *Agent) History() (node.History, error) {
	return a.history.read(func(int) bool { return true }), nil
}

// aliveInterval is how often an idle stream gets an empty line, to show that the agent is alive.
const aliveInterval = 2 * time.Second

// aliveEvery is aliveInterval. Tests set it.
var aliveEvery = aliveInterval

// streamGap is the shortest time between two parts of a stream while changes never stop. After a
// quiet moment the first maxAtOnce changes are sent at once.
const (
	streamGap = 100 * time.Millisecond
	maxAtOnce = 5
)

// stream is streamLines for a client at the agent's socket.
func (a *Agent) stream(w http.ResponseWriter, r *http.Request, once bool, write func() error) {
	changes := func() <-chan struct{} { _, next := a.feed.Latest(); return next }
	streamLines(changes, rate.NewLimiter(rate.Every(streamGap), maxAtOnce), aliveEvery, w, r, once, write)
}

// streamLines calls write at once and after each change, as fast as lines allows, until write fails or
// the client disconnects. changes returns a channel that is closed at the next change. In between it
// sends empty lines. With once, it calls write once and returns.
func streamLines(changes func() <-chan struct{}, lines *rate.Limiter, quiet time.Duration, w http.ResponseWriter, r *http.Request, once bool, write func() error) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the deadline was for the request, which has been read
	alive := time.NewTicker(quiet)
	defer alive.Stop()
	blank := func() error { _, err := w.Write([]byte("\n")); return err }
	for first := true; ; first = false {
		if lines.Wait(r.Context()) != nil {
			return
		}
		next := changes()
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		err := write()
		if err == nil && first && !once {
			err = blank() // for a client that waits for a sign of life
		}
		if err != nil || once {
			return
		}
		for waiting := true; waiting; {
			if control.Flush() != nil {
				return
			}
			select {
			case <-next:
				waiting = false
			case <-alive.C:
				_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
				if blank() != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	}
}

// serveWatch sends one line of JSON, a delta, for each snapshot. The first delta has everything.
func (a *Agent) serveWatch(w http.ResponseWriter, r *http.Request) {
	p := askerOf(r)
	serial, number := uint64(0), uint64(0)
	a.stream(w, r, false, func() error {
		return p.answer(w, func(out io.Writer) error {
			var events []machine.Event
			events, number = a.events.since(number)
			now := a.snapshot.Load()
			d := now.since(serial, p)
			d.Events = p.visible(events)
			serial = now.last
			return json.NewEncoder(out).Encode(&d)
		})
	})
}

// serveEvents sends the events that are kept, one line of JSON each. With follow it goes on with
// new events.
func (a *Agent) serveEvents(w http.ResponseWriter, r *http.Request) {
	p := askerOf(r)
	number := uint64(0)
	a.stream(w, r, !r.URL.Query().Has("follow"), func() error {
		var events []machine.Event
		events, number = a.events.since(number)
		out := json.NewEncoder(w)
		for _, e := range p.visible(events) {
			if err := out.Encode(&e); err != nil {
				return err
			}
		}
		return nil
	})
}

// visible returns the events that a client may see.
func (p peer) visible(events []machine.Event) (out []machine.Event) {
	for i := range events {
		if p.all || events[i].UID == p.uid {
			out = append(out, events[i])
		}
	}
	return out
}

// Watch returns an Update at once and then one for each new snapshot, until the context or the
// agent ends. The last error says why; it is ErrSilent if the agent does not answer. Unchanged jobs
// are shared with the previous update.
func (c *Client) Watch(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		over := errors.New("over")
		err := c.ask(ctx, "/v1/watch", true, func(body io.Reader, alive func()) error {
			var have map[uint64]machine.Job
			lines := scanLines(body)
			for lines.Scan() {
				if alive(); len(lines.Bytes()) == 0 {
					continue
				}
				var d delta
				if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
					return fmt.Errorf("reading the agent's machine: %w", err)
				}
				jobs, next, ok := fleet.Merge(have, d.Serials, d.Jobs)
				if !ok {
					return fmt.Errorf("reading the agent's machine: %d jobs are new, of %d", len(d.Jobs), len(d.Serials))
				}
				if have, d.Jobs = next, jobs; !yield(Update{&d.Machine, d.Events}, nil) {
					return over
				}
			}
			if err := lines.Err(); err != nil {
				return err
			}
			return ErrNone // the agent has ended
		})
		if !errors.Is(err, over) {
			yield(Update{}, err)
		}
	}
}

// publicSource gives the page on the TCP port the data that every user may see.
type publicSource struct{ a *Agent }

func (s publicSource) Latest() (*machine.Machine, []machine.Event, <-chan struct{}) {
	_, next := s.a.feed.Latest()
	return Public(s.a.Machine()), nil, next
}

func (s publicSource) History() (node.History, error) {
	return s.a.history.read(func(int) bool { return false }), nil
}
