package policy

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
)

// Which job sleeps for a user that waits: the one that has been unused longest, if it is needed.
func TestLongestUnused(t *testing.T) {
	process := func(uid int, since int64) *idleProcess {
		p := &idleProcess{idleJob: idleJob{uid: uid}}
		p.unused.Store(since)
		return p
	}
	all := []*idleProcess{process(1, 30), process(2, 10), process(3, 20)}
	for _, c := range []struct {
		what   string
		enough func(uids []int) bool
		uid    int
	}{
		{"any one is enough", func(uids []int) bool { return len(uids) > 0 }, 2},
		{"two are needed", func(uids []int) bool { return len(uids) > 1 }, 2},
		{"only the last used one is enough", func(uids []int) bool { return slices.Contains(uids, 1) }, 1},
		{"all are not enough", func(uids []int) bool { return len(uids) > 3 }, 0},
		{"there is room already", func([]int) bool { return true }, 0},
	} {
		got := 0
		if p := new(idleProcesses).next(slices.Clone(all), c.enough); p != nil {
			got = p.uid
		}
		expect.Equal(t, got, c.uid, c.what)
	}
	expect.True(t, new(idleProcesses).next(nil, func([]int) bool { return false }) == nil, "without jobs")
}

// Jobs that are asked and do not sleep, whatever they say and however often their processes are started again, do not keep
// another one from being asked.
func TestAskedInTurn(t *testing.T) {
	const jobs, honest = 5, 5
	var s idleProcesses
	start := func(uid int) {
		p := &idleProcess{idleJob: idleJob{uid: uid, after: time.Second}, path: fmt.Sprint(uid), ask: make(chan struct{}, 1)}
		p.unused.Store(int64(uid)) // in 1970; the honest one was used last
		s.set(p.path, p)
	}
	for uid := range jobs {
		start(uid + 1)
	}
	turns := []int{}
	for now, end := time.Now(), time.Now().Add(askOthers); now.Before(end); now = now.Add(tryAgain) {
		idle, falling := s.unused(now, func(*idleProcess) bool { return true })
		if p := s.next(idle, func(uids []int) bool { return len(uids)+len(falling) > 0 }); p != nil {
			turns = append(turns, p.uid)
			s.request(p, now)
			start(p.uid) // its user has ended it
		}
	}
	expect.Equal(t, slices.Index(turns, honest), jobs-1, turns)
}

// The service does not wait for a process that does not read its input.
func TestAskWithoutReader(t *testing.T) {
	in, out, err := os.Pipe()
	expect.OK(t, err)
	defer in.Close()
	ctx, stop := context.WithCancel(t.Context())
	p := &idleProcess{path: "x", ask: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		p.forward(ctx, out)
		close(ended)
	}()
	var s idleProcesses
	s.request(p, time.Now())
	line := make([]byte, 6)
	_, err = io.ReadFull(in, line)
	expect.Must(t, err == nil && string(line) == "sleep\n", err, string(line))
	done := make(chan struct{})
	go func() {
		for range 1 << 16 { // more than a pipe holds
			s.request(p, time.Now())
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the service waits for the process")
	}
	stop()
	expect.OK(t, out.Close()) // as when the process has ended
	<-ended
}

// What a user's process writes counts if it is a time, and no more is read of it than it may write.
func TestReports(t *testing.T) {
	p := &idleProcess{}
	report := ReportUnused(p)
	var said []string
	p.onCannot = func(cannot string) { said = append(said, cannot) }
	report(time.Unix(0, 12), "")
	expect.Equal(t, p.unused.Load(), 12)
	report(time.Time{}, "")
	expect.Equal(t, p.unused.Load(), 0)
	for range 2 {
		report(time.Unix(0, 12), "no\nroom")
	}
	report(time.Unix(0, 13), "")
	expect.Equal(t, strings.Join(said, ","), "no?room,")
	for _, c := range []struct {
		text string
		is   int64
	}{{"17\n", 17}, {"3\n4\n", 4}, {"soon\n", 0}, {"-5\n", 0}, {"9\n", 9}} {
		_, err := p.Write([]byte(c.text))
		expect.OK(t, err)
		expect.Equal(t, p.unused.Load(), c.is, c.text)
	}
	_, err := p.Write([]byte(strings.Repeat(fmt.Sprintln(8), maxReport)))
	expect.True(t, err != nil && p.unused.Load() == 9, "it reads on", err, p.unused.Load())
}
