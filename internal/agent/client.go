package agent

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/internal/usage"
	"ration/machine"
)

// ErrNone is returned if neither root nor this user has an agent.
var ErrNone = errors.New("there is no agent")

// ErrVersion is returned if the agent does not know the request, because its version is older.
var ErrVersion = errors.New("the agent's version is older (restart it)")

// ErrSilent is returned if an agent does not answer in time: it is stopped, it hangs, or the
// machine is very busy.
var ErrSilent = errors.New("the agent does not answer")

// These bound how long a client waits for an agent. All commands also work without an agent.
const (
	dialTimeout = 200 * time.Millisecond
	// timeout is for a whole answer, or for the first line of a stream.
	timeout = time.Second
	// silence is for each later line of a stream.
	silence   = 3 * aliveInterval
	maxAnswer = 64 << 20
	// Rest is how long a command that polls the agent waits after a request without an answer.
	Rest = 10 * time.Second
)

// rootFolder holds the socket of root's agent.
const rootFolder = "/run/ration"

// Sockets returns the paths of two sockets: that of root's agent, which sees the whole machine, and
// that of this user's own agent.
func Sockets() []string {
	own := filepath.Join(job.Folder(), job.AgentSocket)
	if os.Getenv(job.EnvFolder) != "" || job.Folder() == rootFolder {
		return []string{own}
	}
	return []string{filepath.Join(rootFolder, job.AgentSocket), own}
}

// Client sends requests to an agent of root or of this user. The kernel must report one of these
// two as the owner of the socket file and of the listening process. If systemd made the socket, the
// listening process is systemd, which passes the socket only to the agent's unit.
type Client struct {
	path    string
	http    *http.Client
	version atomic.Pointer[string] // from the last answer; nil before the first

	timeout, silence time.Duration
}

// Version returns the agent's version, as of its last answer. It is empty for agents before 0.2,
// which do not send it.
func (c *Client) Version() string {
	if v := c.version.Load(); v != nil {
		return *v
	}
	return ""
}

// Find returns a client of the first agent that is listening, or ErrNone.
func Find() (*Client, error) {
	for _, path := range Sockets() {
		c, err := dial(path)
		if err != nil {
			continue
		}
		_ = c.Close()
		return NewClient(path), nil
	}
	return nil, ErrNone
}

// NewClient returns a client of the agent at a socket.
func NewClient(path string) *Client {
	return &Client{path: path, timeout: timeout, silence: silence, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(path) }}}}
}

// Patient returns a client of the same agent that waits so long for a whole answer.
func (c *Client) Patient(wait time.Duration) *Client {
	p := NewClient(c.path)
	p.timeout = wait
	return p
}

// dial connects to a socket of root or of this user.
func dial(path string) (net.Conn, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, ErrNone
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || !believed(int(st.Uid)) {
		return nil, fmt.Errorf("%s: %w of root or of this user", path, ErrNone)
	}
	c, err := connlimit.Dial(path, dialTimeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	uid, err := connlimit.PeerUID(c)
	if err != nil || !believed(uid) {
		_ = c.Close()
		return nil, fmt.Errorf("%s: %w of root or of this user", path, ErrNone)
	}
	return c, nil
}

func believed(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// Machine returns the part of the latest snapshot that this user may see.
func (c *Client) Machine() (m machine.Machine, err error) {
	return m, c.get("/v1/machine", &m)
}

// History returns the history of the last minutes.
func (c *Client) History() (h node.History, err error) {
	return h, c.get("/v1/history", &h)
}

// Report returns a report of usage, with a plot if that is wanted and the agent knows plots.
func (c *Client) Report(from, to time.Time, by string, plot bool) (r usage.Report, err error) {
	query := url.Values{"from": {from.Format(time.RFC3339Nano)}, "to": {to.Format(time.RFC3339Nano)}, "by": {by}}
	if plot {
		query.Set("plot", "")
	}
	return r, c.get("/v1/usage?"+query.Encode(), &r)
}

func (c *Client) get(path string, out any) error {
	return c.ask(context.Background(), path, false, func(body io.Reader, _ func()) error {
		if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(out); err != nil {
			return fmt.Errorf("reading the agent's answer: %w", err)
		}
		return nil
	})
}

// ask sends a request and calls read with the answer's body. A whole answer, or the first line of a
// stream, must arrive within the client's timeout. For a stream, read must call alive at each line.
func (c *Client) ask(ctx context.Context, path string, stream bool, read func(body io.Reader, alive func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.timeout, func() { cancel(ErrSilent) })
	defer silent.Stop()
	alive := func() {
		if stream {
			silent.Reset(c.silence)
		}
	}
	body, err := c.open(ctx, path)
	if err == nil {
		defer body.Close()
		err = read(body, alive)
	}
	if err != nil && errors.Is(context.Cause(ctx), ErrSilent) {
		return fmt.Errorf("%s: %w", c.path, ErrSilent)
	}
	return err
}

func (c *Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the agent: %w", err)
	}
	version := answer.Header.Get(headerVersion)
	c.version.Store(&version)
	if answer.StatusCode == http.StatusNotFound {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("asking the agent for %s: %w", path, ErrVersion)
	}
	if answer.StatusCode != http.StatusOK {
		const most = 512
		says, _ := io.ReadAll(io.LimitReader(answer.Body, most))
		_ = answer.Body.Close()
		return nil, fmt.Errorf("asking the agent: it says: %s", cmp.Or(termtext.Printable(strings.TrimSpace(string(says))), answer.Status))
	}
	return answer.Body, nil
}

// Events calls visit for each event that the agent keeps and, with follow, for each new event. It
// returns when the context ends, when visit returns an error, or when the agent is silent
// (ErrSilent).
func (c *Client) Events(ctx context.Context, follow bool, visit func(machine.Event) error) error {
	path := "/v1/events"
	if follow {
		path += "?follow"
	}
	return c.ask(ctx, path, follow, func(body io.Reader, alive func()) error {
		lines := scanLines(body)
		for lines.Scan() {
			if alive(); len(lines.Bytes()) == 0 {
				continue
			}
			var e machine.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return fmt.Errorf("reading the agent's events: %w", err)
			}
			if err := visit(e); err != nil {
				return err
			}
		}
		return lines.Err()
	})
}

// scanLines splits a stream into lines. It drops an incomplete last line.
func scanLines(body io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxAnswer)
	lines.Split(func(text []byte, _ bool) (int, []byte, error) { return bufio.ScanLines(text, false) })
	return lines
}
