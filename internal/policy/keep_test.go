package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/connlimit"
	"ration/internal/job"
)

// failing is a listener whose errors are those of a moment, until it is closed.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

// A moment without descriptors does not leave the machine without a keeper that answers.
func TestServeGoesOn(t *testing.T) {
	l := &failing{errs: []error{unix.EMFILE, unix.ECONNABORTED, net.ErrClosed}}
	newKeeper(slog.New(slog.DiscardHandler), nil).serve(l)
	expect.Equal(t, len(l.errs), 0, "calls are left when it listens no more")
}

// One user's refused requests fill neither the log nor its time: the log says how many it left out.
func TestRefusalsFillNoLog(t *testing.T) {
	var log bytes.Buffer
	k := newKeeper(slog.New(slog.NewTextHandler(&log, nil)), nil)
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	expect.OK(t, err)
	ended := make(chan struct{})
	go func() { k.serve(socket); close(ended) }()
	const requests = 3 * maxLines
	for range requests {
		c, err := net.Dial("unix", socket.Addr().String())
		expect.OK(t, err)
		_, err = c.Write([]byte("x\n"))
		expect.OK(t, err)
		answer, err := io.ReadAll(c)
		expect.True(t, err == nil && len(answer) > 0, err, "answer", string(answer))
		c.Close()
	}
	socket.Close()
	<-ended
	k.lines.Close()
	expect.Equal(t, strings.Count(log.String(), "refused"), maxLines)
	expect.True(t, strings.Contains(log.String(), fmt.Sprintf("%d lines about requests", requests-maxLines)), log.Len())
}

// A run that does not end, and is not to be waited for either, is tried less and less often.
func TestRunThatCannotBeWaitedFor(t *testing.T) {
	var pauses []time.Duration
	tries := 0
	end := func() error {
		if tries++; tries < 4 {
			return fmt.Errorf("ending it: %w", job.ErrInUse)
		}
		return nil
	}
	waited, err := endWhenUnused(func() error { return nil }, end, func(d time.Duration) { pauses = append(pauses, d) })
	expect.True(t, waited && err == nil && tries == 4 && len(pauses) == 3 && pauses[0] != 0,
		waited, err, "after", tries, "tries and pauses of", pauses)
	broken := errors.New("broken")
	if waited, err := endWhenUnused(func() error { return broken }, end, nil); waited || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", waited, err)
	}
	if waited, err := endWhenUnused(func() error { return fs.ErrNotExist }, func() error { return broken }, nil); !waited || !errors.Is(err, broken) {
		t.Errorf("got %v, %v", waited, err)
	}
}

// The promise of the queue keeps the job of a user that waited until the client has a promise of its own.
func TestPromiseUntilAnswered(t *testing.T) {
	k := newKeeper(slog.New(slog.DiscardHandler), nil)
	w := &waitingUser{left: make(chan struct{}), ended: make(chan struct{})}
	k.queue.users[4711] = w
	close(w.ended)
	server, client := net.Pipe()
	defer client.Close()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	expect.OK(t, k.wait(&connlimit.Conn{Conn: server}, &mustWait{uid: 4711}, func() error {
		select {
		case <-w.left:
			return errors.New("the job is not kept while the client is answered")
		default:
			return nil
		}
	}))
	select {
	case <-w.left:
	default:
		t.Error("the job is kept after the client was answered")
	}
}

// The clients of a user share a place in the queue.
func TestPlaceInQueue(t *testing.T) {
	all := []job.Waiting{{UID: 1000}, {}, {UID: 1001}}
	for uid, want := range map[int]int{1000: 1, 1001: 3, 1002: 4} {
		expect.Equal(t, placeOf(all, uid), want)
	}
}

// The client that took the ticket can leave while it is taken; another one that waits is named then.
func TestTicketNamesWhoWaits(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	k := newKeeper(slog.New(slog.DiscardHandler), nil)
	first, second := job.ClientOf(os.Getpid()), job.ClientOf(os.Getppid())
	w := &waitingUser{clients: []job.Client{first}, left: make(chan struct{}), ended: make(chan struct{})}
	k.queue.users[4711] = w
	ticket, err := job.Enqueue(job.Waiting{Job: "u4711", UID: 4711, PID: first.PID})
	expect.OK(t, err)
	defer ticket.Leave()
	k.enter(&mustWait{uid: 4711}, second, nil)
	k.leave(4711, w, first, nil)
	k.setTicket(w, ticket)
	all, err := job.Queue(job.Folder())
	expect.OK(t, err)
	expect.Must(t, len(all) == 1, all)
	expect.Equal(t, all[0].PID, second.PID, "the ticket names pid", "is")
}
