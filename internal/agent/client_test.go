package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/job"
	"ration/machine"
)

// hangingAgent is an agent of a folder that answers with a text, and then says nothing more.
func hangingAgent(t *testing.T, folder, answer string) *Client {
	t.Helper()
	path := filepath.Join(folder, job.AgentSocket)
	testenv.SilentServer(t, path, answer)
	return NewClient(path)
}

// Nobody waits for an agent that does not answer, whatever is asked and wherever it stops: for an answer
// a second, for the next line of a stream three times as long as it takes an agent to send one.
func TestSilentAgent(t *testing.T) {
	const (
		head   = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
		opened = head + "Transfer-Encoding: chunked\r\n\r\n"
	)
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	expect.True(t, timeout == time.Second && silence == 3*aliveInterval, "it waits", timeout, silence, "(docs/monitoring.md)")
	for name, c := range map[string]struct {
		answer string
		lines  int // of a stream
	}{
		"nothing":        {answer: ""},
		"half a header":  {answer: head[:20]},
		"a header":       {answer: opened},
		"half an answer": {answer: opened + chunk(`{"jobs": [`)},
		"half a line":    {answer: opened + chunk(`{"kind": "st`)},
		"lines, no more": {answer: opened + chunk("{}\n") + chunk("{}\n{"), lines: 2},
	} {
		t.Run(name, func(t *testing.T) {
			client := hangingAgent(t, t.TempDir(), c.answer)
			visits := 0
			visit := func() {
				visits++
				client.silence = time.Millisecond // after the next line
			}
			for what, ask := range map[string]func() error{
				"machine": func() error { _, err := client.Machine(); return err },
				"history": func() error { _, err := client.History(); return err },
				"events": func() error {
					return client.Events(context.Background(), false, func(machine.Event) error { visit(); return nil })
				},
				"follow": func() error {
					return client.Events(context.Background(), true, func(machine.Event) error { visit(); return nil })
				},
				"watch": func() (last error) {
					for _, err := range client.Watch(context.Background()) {
						if last = err; err == nil {
							visit()
						}
					}
					return last
				},
			} {
				// The bound that is not the one in question never ends.
				stream := what == "follow" || what == "watch"
				client.timeout, client.silence = time.Millisecond, time.Hour
				switch {
				case stream && c.lines > 0:
					client.timeout = time.Hour
				case c.lines > 0 && what != "events":
					continue // that is an answer
				}
				visits = 0
				err := ask()
				expect.True(t, errors.Is(err, ErrSilent) && err.Error() == client.path+": "+ErrSilent.Error(), what, err)
				expect.True(t, !stream || visits == c.lines, what, visits, "lines")
			}
		})
	}
}

// A stream has a sign of life at once, though nothing has happened.
func TestStreamAlive(t *testing.T) {
	defer func(was time.Duration) { aliveEvery = was }(aliveEvery)
	aliveEvery = time.Hour
	folder := testFolder(t)
	a := startAgent(t, Options{})
	stop, served := serveAgent(t, a, folder)
	client := NewClient(filepath.Join(folder, job.AgentSocket))
	client.timeout, client.silence = time.Hour, time.Hour
	body, err := client.open(t.Context(), "/v1/events?follow")
	expect.OK(t, err)
	lines := scanLines(body)
	expect.True(t, lines.Scan() && lines.Text() == "", "the first line is", lines.Text())
	_ = body.Close()
	stop()
	expect.Equal(t, <-served, nil)
}

// What an agent that does not answer would add is left out, with the error that says so, and who looks again
// and again asks once.
func TestSilentTotals(t *testing.T) {
	folder := testFolder(t)
	hangingAgent(t, folder, "")
	j := machine.Job{Path: "p"}
	got, err := Booked(&j)
	expect.True(t, len(got) == 0 && errors.Is(err, ErrSilent), got, err)
	totals := Totals{rest: time.Now().Add(time.Hour)}
	err = totals.Add(&machine.Machine{})
	expect.True(t, err == nil && totals.Resting(), err)
	expect.Equal(t, onlySilent(ErrVersion), nil)
	expect.True(t, slices.Contains(Sockets(), filepath.Join(folder, job.AgentSocket)), "it was not asked")
}
