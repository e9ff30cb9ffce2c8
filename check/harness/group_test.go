package harness

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roles are what the test binary does as a worker.
var roles = map[string]Role{
	"gates": func(s *Self) error {
		for gate := range 2 {
			s.Wait(gate)
			if err := s.Report(s.Index*10 + gate); err != nil {
				return err
			}
		}
		return nil
	},
	"task": func(s *Self) error {
		var word string
		return errors.Join(s.Task(&word), s.Report(word))
	},
	"fails": func(*Self) error { return errors.New("no such luck") },
	"sleep": func(*Self) error { time.Sleep(bound); return nil },
}

func init() {
	asSelf[WorkerCommand] = func() error { return Serve(os.Args[2:], roles) }
}

func startGroup(t *testing.T, role string, n, gates int) *Group {
	t.Helper()
	g, err := StartGroup(GroupSpec{Role: role, N: n, Gates: gates, Task: func(int) any { return "word" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func TestGates(t *testing.T) {
	g := startGroup(t, "gates", 5, 2)
	if early, err := Gather[int](g, 20*time.Millisecond); !errors.Is(err, ErrLate) {
		t.Fatalf("got %d, %v before a gate was opened, want ErrLate", early, err)
	}
	for gate := range 2 {
		g.Open(gate)
		got, err := Gather[int](g, bound)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != i*10+gate {
				t.Errorf("worker %d reported %d at gate %d", i, v, gate)
			}
		}
	}
	for _, w := range g.Workers {
		if err := w.Wait(bound); err != nil {
			t.Error(err)
		}
	}
}

func TestTask(t *testing.T) {
	if got, err := Gather[string](startGroup(t, "task", 1, 0), bound); err != nil || got[0] != "word" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestWorkerFails(t *testing.T) {
	_, err := Gather[any](startGroup(t, "fails", 1, 0), bound)
	if err == nil || !strings.Contains(err.Error(), "exit status 1: no such luck") {
		t.Errorf("got %v, want how and why the worker ended", err)
	}
}

func TestCloseKillsAll(t *testing.T) {
	g := startGroup(t, "sleep", 3, 0)
	if err := g.Workers[1].Stop(); err != nil {
		t.Fatal(err)
	}
	g.Close()
	for i, w := range g.Workers {
		if err := unix.Kill(w.PID(), 0); err != unix.ESRCH {
			t.Errorf("worker %d after Close: %v", i, err)
		}
	}
}

func TestServeRefusesOtherCommandLines(t *testing.T) {
	for _, args := range [][]string{nil, {"gates"}, {"nothing", "0", "{}"}, {"gates", "first", "{}"}} {
		if err := Serve(args, roles); !errors.Is(err, ErrUsage) {
			t.Errorf("%q: got %v, want ErrUsage", args, err)
		}
	}
}
