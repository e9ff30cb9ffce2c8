package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// queueForTest returns a new folder of jobs.
func queueForTest(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, dir)
	return dir
}

// enqueued takes a ticket.
func enqueued(t *testing.T, name string) *Ticket {
	ticket, err := Enqueue(Waiting{Job: name, Wants: map[int]uint64{0: 1 << 30}})
	expect.OK(t, err)
	t.Cleanup(ticket.Leave)
	return ticket
}

// jobsIn returns the names in the queue.
func jobsIn(t *testing.T, dir string) (names string) {
	all, err := Queue(dir)
	expect.OK(t, err)
	for _, w := range all {
		names += w.Job
	}
	return names
}

func TestQueueOrder(t *testing.T) {
	dir := queueForTest(t)
	all, err := Queue(dir)
	expect.True(t, err == nil && len(all) == 0, "a folder that is missing has no queue", err)
	a, b, c := enqueued(t, "a"), enqueued(t, "b"), enqueued(t, "c")
	expect.Equal(t, jobsIn(t, dir), "abc", "the queue", "is")
	expect.Equal(t, [3]int{a.Ahead(), b.Ahead(), c.Ahead()}, [3]int{0, 1, 2}, "before each", "are")
	expect.OK(t, a.First())

	first := make(chan string, 2)
	for name, ticket := range map[string]*Ticket{"b": b, "c": c} {
		go func() {
			if ticket.First() == nil {
				first <- name
			}
		}()
	}
	select {
	case name := <-first:
		t.Fatal(name, "is the first beside another")
	case <-time.After(50 * time.Millisecond):
	}
	a.Leave()
	expect.Equal(t, <-first, "b", "after the first has left, the first", "is")
	d := enqueued(t, "d")
	expect.Equal(t, d.Ahead(), 2, "before one that comes later", "are")
	b.Leave()
	expect.Equal(t, <-first, "c", "the next", "is")
	expect.Equal(t, jobsIn(t, dir), "cd", "the queue", "is")
}

// A job that wakes has a place in the queue, and is no command that will make a job.
func TestQueueWakes(t *testing.T) {
	dir := queueForTest(t)
	for range 2 { // ration wake, and the process that wakes the job when a call wants it
		ticket, err := Enqueue(Waiting{Job: "a", Wakes: true})
		expect.OK(t, err)
		defer ticket.Leave()
	}
	expect.Equal(t, jobsIn(t, dir), "aa", "the queue", "is")
	expect.True(t, FindQueued(dir, "a") == nil, "a job that wakes is taken for a command")
	command := enqueued(t, "a")
	q := FindQueued(dir, "a")
	expect.Must(t, q != nil && q.Ticket == command.number, q)
	q.Close()
}

// The file's content may be damaged: the order is that of the locks.
func TestQueueDamaged(t *testing.T) {
	dir := queueForTest(t)
	path := filepath.Join(dir, queueName)
	a := enqueued(t, "a")
	for i, text := range []string{"", "\xff\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x20", "\x00\x00\x00\x00\x00\x00\x00\x00"} {
		expect.OK(t, os.Truncate(path, 0))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
		b := enqueued(t, "b")
		expect.Equal(t, b.Ahead(), 1, i, "before one with a damaged file", "are")
		expect.Equal(t, b.number, a.number+1, i, "the ticket after the last one that is held")
		all, err := Queue(dir)
		expect.True(t, err == nil && len(all) == 2 && all[0].Job == "" && all[1].Job == "b", i, all, err)
		b.Leave()
	}
	long, err := Enqueue(Waiting{Job: strings.Repeat("x", recordSize)}) // its record does not fit, and is left out
	expect.OK(t, err)
	all, err := Queue(dir)
	expect.True(t, err == nil && len(all) == 2 && all[1].Job == "", all, err)
	long.Leave()
	expect.OK(t, os.Remove(path))
	b := enqueued(t, "b") // a new file is another queue
	expect.Equal(t, b.Ahead(), 0, "in a new queue, before the first", "are")
	expect.Equal(t, a.Ahead(), 0, "in the old one", "are")
}

func TestQueueFull(t *testing.T) {
	queueForTest(t)
	for i := range maxWaiting {
		enqueued(t, fmt.Sprint("a", i))
	}
	_, err := Enqueue(Waiting{Job: "b"})
	expect.True(t, errors.Is(err, ErrQueueFull), err)
}

// A lock that is not of a ticket's kind does not make the reader run for ever.
func TestQueueHostile(t *testing.T) {
	dir := queueForTest(t)
	a := enqueued(t, "a")
	lock := unix.Flock_t{Type: exclusive, Start: 0, Len: 0}
	expect.OK(t, unix.FcntlFlock(a.file.Fd(), unix.F_OFD_SETLK, &lock))
	all, err := Queue(dir)
	expect.True(t, err == nil && len(all) <= maxWaiting, len(all), err)
}

// A reader asks the kernel a bounded number of questions about a queue with very many tickets, and none after its time is
// up: each takes as long as the file has locks.
func TestQueueOfVeryMany(t *testing.T) {
	dir := queueForTest(t)
	for i := range 100 {
		enqueued(t, fmt.Sprint("a", i))
	}
	for _, c := range []struct{ most, questions, found int }{{10, 1000, 10}, {1000, 1000, 100}, {1000, 30, 14}, {1000, 0, 0}} {
		asked := 0
		all, err := QueueWhile(dir, c.most, func() bool {
			asked++
			return asked <= c.questions
		})
		expect.True(t, err == nil && len(all) <= c.found+1 && len(all) >= c.found-1 && asked <= 2*c.most+2, c, len(all), asked, err)
	}
}

// Commands that come and go behind one that stays do not fill the queue, and the record of a ticket that is held stays its own.
func TestQueueComeAndGo(t *testing.T) {
	dir := queueForTest(t)
	enqueued(t, "stays")
	for i := range 3 * maxWaiting {
		ticket, err := Enqueue(Waiting{Job: "goes"})
		expect.Must(t, err == nil, i, err)
		if i == maxWaiting {
			t.Cleanup(enqueued(t, "too").Leave)
		}
		ticket.Leave()
	}
	last := enqueued(t, "last")
	expect.Equal(t, jobsIn(t, dir), "staystoolast", "the queue", "is")
	expect.Equal(t, last.Ahead(), 2, "before the last", "are")
}

// To find a command by its name takes few questions to the kernel, however many tickets are held, and none after the time is
// up. What the policy's service waits for is no command: its PID is a client's, which may have ended.
func TestFindQueuedAmongMany(t *testing.T) {
	dir := queueForTest(t)
	for i := range 200 {
		enqueued(t, fmt.Sprint("a", i))
	}
	for range 300 {
		ticket, err := Enqueue(Waiting{Job: "wanted", Joins: true})
		expect.OK(t, err)
		ticket.Leave()
	}
	wanted := enqueued(t, "wanted")
	again, err := Enqueue(Waiting{Job: "wanted", Joins: true})
	expect.OK(t, err)
	defer again.Leave()
	q := FindQueued(dir, "wanted")
	expect.Must(t, q != nil && q.Ticket == wanted.number, q)
	q.Close()
	expect.True(t, FindQueued(dir, "") == nil && FindQueued(dir, "gone") == nil)
	asked := 0
	_, is := queuedAs(int(wanted.file.Fd()), "a199", func() bool { asked++; return asked <= 100 })
	expect.True(t, !is && asked == 101, is, asked)

	service, err := Enqueue(Waiting{Job: "user-7", UID: 7})
	expect.OK(t, err)
	defer service.Leave()
	expect.True(t, FindQueued(dir, "user-7") == nil, "a client of the policy's service counts as this user's command")
}

// A ticket that several clients share names another one when the first has left.
func TestTicketOfAnotherClient(t *testing.T) {
	dir := queueForTest(t)
	ticket := enqueued(t, "a")
	before, err := Queue(dir)
	expect.OK(t, err)
	enqueued(t, "b")
	parent := ClientOf(os.Getppid())
	expect.OK(t, ticket.SetClient(parent))
	after, err := Queue(dir)
	expect.OK(t, err)
	expect.Equal(t, jobsIn(t, dir), "ab", "the queue", "is")
	expect.Equal(t, Client{after[0].PID, after[0].Start}, parent, "the client", "is")
	expect.Equal(t, after[0].Since, before[0].Since, "the time", "is")
}
