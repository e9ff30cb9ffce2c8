package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// A page goes on when an agent starts, ends, or does not answer: it has the machine and each event once,
// and says where they come from.
func TestSource(t *testing.T) {
	defer func(was time.Duration) { findInterval = was }(findInterval)
	findInterval = 10 * time.Millisecond
	folder := testFolder(t)
	holder(t, "train")
	ctx, cancel := context.WithCancel(t.Context())
	var warned atomic.Int32
	s, err := NewSource(ctx, Options{Log: slog.New(slog.DiscardHandler)}, false, func(error) { warned.Add(1) })
	expect.OK(t, err)
	defer func() {
		cancel()
		s.Close()
	}()
	await := func(what, note string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); s.Note() != note; time.Sleep(time.Millisecond) {
			expect.Must(t, !time.Now().After(end), what, "the note is", s.Note())
		}
		m, events, _ := s.Latest()
		refused := 0
		for _, e := range events {
			if e.Kind == machine.RequestRefused {
				refused++
			}
		}
		h, err := s.History()
		expect.True(t, err == nil && len(h.Times) != 0 && len(m.Jobs) == 1 && refused == 1,
			what, len(m.Jobs), "jobs", refused, "refusals", len(h.Times), "times", err)
	}
	const alone = "No agent runs: the history begins with this page."
	await("at first", alone)
	a := startAgent(t, Options{})
	a.await(t, machine.RequestRefused, 1)
	stop, served := serveAgent(t, a, folder)
	await("an agent starts", "")
	stop()
	<-served
	await("it ends", alone)
	expect.Equal(t, warned.Load(), 0, "warnings")
}

// An agent that does not answer is said once, and not waited for.
func TestSourceOfSilentAgent(t *testing.T) {
	hangingAgent(t, testFolder(t), "")
	ctx, cancel := context.WithCancel(t.Context())
	warned := make(chan error, 10)
	s, err := NewSource(ctx, Options{Log: slog.New(slog.DiscardHandler)}, false, func(err error) { warned <- err })
	expect.OK(t, err)
	note := s.Note()
	expect.True(t, note == "The agent does not answer: the history begins with this page." && len(warned) == 1 && errors.Is(<-warned, ErrSilent),
		"the note is", note, "and it has warned", len(warned), "times")
	cancel()
	s.Close()
}
