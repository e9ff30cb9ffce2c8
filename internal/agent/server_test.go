package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/machine"
)

// What others have is seen in totals only.
func TestVisible(t *testing.T) {
	m := &machine.Machine{Folder: "/run/ration", Hidden: 3, Devices: []machine.GPU{{Rations: 5, Jobs: 2}},
		Jobs:    []machine.Job{{Name: "mine", Path: "a", UID: 7}, {Name: "theirs", Path: "b", UID: 8, Command: []string{"secret"}}, {Path: "c", UID: -1}},
		Outside: []machine.Outside{{PID: 1, UID: 7}, {PID: 2, UID: 8, Name: "secret"}},
		Findings: []machine.Finding{{Kind: machine.Overbooked}, {Kind: machine.Drift, Path: "a"}, {Kind: machine.Drift, Path: "b", Text: "secret"}, {Kind: machine.OutsideJobs, PID: 1},
			{Kind: machine.OutsideJobs, PID: 2, Text: "secret"}, {Kind: machine.Unanswering, Text: "secret"}}}
	got := Visible(m, 7, false)
	expect.True(t, len(got.Jobs) == 1 && got.Jobs[0].Name == "mine" && len(got.Outside) == 1 && len(got.Findings) == 3 && got.Devices[0].Rations == 5,
		got)
	text := fmt.Sprintf("%+v", got)
	expect.True(t, !strings.Contains(text, "secret") && !strings.Contains(text, "theirs"), text)
	none := Visible(m, -1, false)
	expect.True(t, len(none.Jobs)+len(none.Outside)+len(none.Findings) == 0 && len(none.Devices) == 1, "an unknown user sees", none)
	expect.Equal(t, Visible(m, 7, true), m, "root does not see all")
}

// Under a policy only root can change a limit, so others are not asked to.
func TestVisibleOverbooked(t *testing.T) {
	defer func() { policyInForce = job.PolicyInForce }()
	for _, is := range []bool{false, true} {
		policyInForce = func() bool { return is }
		m := &machine.Machine{Findings: []machine.Finding{{Kind: machine.Overbooked, Remedy: "ration limit"}}}
		expect.Equal(t, Visible(m, 7, false).Findings[0].Remedy == "ration limit", !is, "an ordinary user")
		expect.Equal(t, Visible(m, 0, true).Findings[0].Remedy, "ration limit", "root")
	}
}

// A client that does not read its answer delays no other request of its user.
func TestUnreadAnswer(t *testing.T) {
	p := peer{uid: 7, user: &connlimit.User{}}
	reader, unread := io.Pipe()
	defer reader.Close()
	made := make(chan struct{})
	go p.answer(unread, func(out io.Writer) error {
		defer close(made)
		_, err := io.WriteString(out, "not read")
		return err
	})
	<-made
	var got bytes.Buffer
	p.answer(&got, func(out io.Writer) error { _, err := io.WriteString(out, "read"); return err })
	expect.Equal(t, got.String(), "read")
}

// A client believes nobody but root and its own user, waits for nobody long, and there is one
// agent in a folder.
func TestClient(t *testing.T) {
	folder := testFolder(t)
	_, err := Find()
	expect.True(t, errors.Is(err, ErrNone), err)
	holder(t, "train")
	a := startAgent(t, Options{Version: "0.3.0"})
	socket, release, err := Listen(folder)
	expect.OK(t, err)
	_, _, err = Listen(folder)
	expect.True(t, errors.Is(err, ErrRunning), err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, socket) }()
	c, err := Find()
	expect.OK(t, err)
	m, err := c.Machine()
	expect.True(t, err == nil && len(m.Jobs) == 1 && m.Jobs[0].Name == "train", m, err)
	expect.Equal(t, c.Version(), "0.3.0", "it is of version")
	// A later ration may ask what this agent does not know: then it does without.
	err = c.get("/v9/machine", &m)
	expect.True(t, errors.Is(err, ErrVersion), err)
	h, err := c.History()
	expect.True(t, err == nil && len(h.Times) != 0, h, err)
	followed := make(chan machine.Event, 100)
	streamed := make(chan error, 1)
	go func() {
		streamed <- c.Events(context.Background(), true, func(e machine.Event) error { followed <- e; return nil })
	}()
	for e := range followed {
		if e.Kind == machine.RequestRefused {
			break
		}
	}
	holder(t, "other")
	for e := range followed {
		if e.Kind == machine.JobStarted && e.Job == "other" {
			break
		}
	}
	stop() // the stream ends, and the socket goes
	expect.Equal(t, <-ended, nil)
	<-streamed
	release()
	_, err = Find()
	expect.True(t, errors.Is(err, ErrNone), err)
	// One that does not answer is given up.
	path := filepath.Join(folder, job.AgentSocket)
	silent, err := net.Listen("unix", path)
	expect.OK(t, err)
	defer silent.Close()
	begin := time.Now()
	if _, err := NewClient(path).Machine(); err == nil {
		t.Error("something has answered")
	}
	took := time.Since(begin)
	expect.True(t, took <= 10*timeout, "took", took)
	if os.Geteuid() == 0 { // another user's
		expect.OK(t, os.Chown(path, 61000, 61000))
		t.Cleanup(func() { _ = os.Remove(path) })
		_, err := dial(path)
		expect.True(t, errors.Is(err, ErrNone), err)
	}
}

// systemd is told, where it wants to know.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	expect.OK(t, err)
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	Notify("READY=1")
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	expect.True(t, err == nil && string(buf[:n]) == "READY=1", buf[:n], err)
}
