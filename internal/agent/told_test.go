package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/internal/job"
	"ration/machine"
)

// An agent logs and counts what no agent before it has: not the jobs that were there when it was
// started again, and once those that began meanwhile. It knows all of them.
func TestToldOnce(t *testing.T) {
	testFolder(t)
	run := func(name string, jobs, told int) {
		var log bytes.Buffer
		var a *Agent
		t.Run(name, func(t *testing.T) { // at whose end the agent has ended
			a = startAgent(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			a.await(t, machine.JobStarted, jobs)
			a.await(t, machine.RequestRefused, jobs)
		})
		counted, logged := a.Stats().Events, strings.Count(log.String(), "has started")
		if counted[machine.JobStarted] != uint64(told) || counted[machine.RequestRefused] != uint64(told) || logged != told {
			t.Errorf("%s: %v were counted, and the log has %d starts, want %d: %s", name, counted, logged, told, log.String())
		}
	}
	holder(t, "one")
	run("first", 1, 1)
	run("again", 1, 0)
	holder(t, "two")
	run("after a start without an agent", 2, 1)
	run("once more", 2, 0)
	if err := os.Remove(filepath.Join(job.Folder(), job.AgentTold)); err != nil {
		t.Fatal(err)
	}
	run("without the file", 2, 2)
}

// Events that a look saw although they happened after it began are told once, too, and what happened
// after the last of them, or before a clock that was set back, is not taken to be told.
func TestToldList(t *testing.T) {
	folder := t.TempDir()
	event := func(at int) machine.Event {
		return machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(at), Time: int64(at)}
	}
	open := func(now int64) *told {
		list, err := openTold(folder, time.Unix(0, now))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(list.close)
		return list
	}
	times := func(events []machine.Event) (out []int64) {
		for _, e := range events {
			out = append(out, e.Time)
		}
		return out
	}
	list := open(1 << 40)
	if got := list.untold([]machine.Event{event(1), event(2)}); len(got) != 2 {
		t.Errorf("the first agent tells %v", times(got))
	}
	if err := list.save([]machine.Event{event(90), event(100), event(120)}, time.Unix(0, 100)); err != nil {
		t.Fatal(err)
	}
	all := []machine.Event{event(100), event(110), event(120), event(130)}
	if got := fmt.Sprint(times(open(1 << 40).untold(all))); got != "[110 130]" {
		t.Errorf("the next agent tells %s", got)
	}
	if got := fmt.Sprint(times(open(50).untold([]machine.Event{event(50), event(60)}))); got != "[60]" {
		t.Errorf("after the clock was set back it tells %s", got)
	}
	var many []machine.Event
	for i := range 3 * maxLater {
		many = append(many, event(200+i))
	}
	if err := list.save(many, time.Unix(0, 150)); err != nil {
		t.Fatal(err)
	}
	if st, err := list.file.Stat(); err != nil || st.Size() != 4096 {
		t.Errorf("%d bytes, %v", st.Size(), err)
	}
	if got := open(1 << 40).untold(many); len(got) != 2*maxLater {
		t.Errorf("%d are told again", len(got))
	}
	if err := list.save([]machine.Event{event(300)}, time.Unix(0, 400)); err != nil {
		t.Fatal(err)
	}
	if got := open(1 << 40); len(got.later) != 0 || got.until != 400 {
		t.Errorf("got %d and %d more", got.until, len(got.later))
	}
}
