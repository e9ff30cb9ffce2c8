package procgroup

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/child"
)

const bound = time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		err := Serve(os.Args[2:], map[string]Role{
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
		})
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startGroup(t *testing.T, role string, n, gates int) *Group {
	t.Helper()
	g, err := Start(Spec{Role: role, N: n, Gates: gates, Task: func(int) any { return "word" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func TestGates(t *testing.T) {
	g := startGroup(t, "gates", 5, 2)
	var early int
	if err := g.Workers[0].Receive(&early, 20*time.Millisecond); !errors.Is(err, child.ErrLate) {
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
	g := startGroup(t, "task", 1, 0)
	var word string
	if err := g.Workers[0].Receive(&word, bound); err != nil || word != "word" {
		t.Errorf("got %q, %v", word, err)
	}
}

func TestWorkerFails(t *testing.T) {
	g := startGroup(t, "fails", 1, 0)
	var v any
	err := g.Workers[0].Receive(&v, bound)
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
	for _, w := range g.Workers {
		if err := unix.Kill(w.PID(), 0); err != unix.ESRCH {
			t.Errorf("worker %d after Close: %v", w.Index, err)
		}
	}
}

func TestServeIsNotForPeople(t *testing.T) {
	for _, args := range [][]string{nil, {"gates"}, {"nothing", "0", "{}"}, {"gates", "first", "{}"}} {
		if err := Serve(args, map[string]Role{"gates": nil}); !errors.Is(err, ErrUsage) {
			t.Errorf("%q: got %v, want ErrUsage", args, err)
		}
	}
}
