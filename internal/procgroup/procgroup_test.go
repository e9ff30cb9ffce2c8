package procgroup

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const bound = time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		err := Serve(os.Args[2:], map[string]Role{
			"gates": func(p *Post) error {
				for gate := range 2 {
					p.Wait(gate)
					if err := p.Report(p.Index*10 + gate); err != nil {
						return err
					}
				}
				return nil
			},
			"told": func(p *Post) error {
				var word string
				return errors.Join(p.Task(&word), p.Report(word), p.Report(p.Passed(0)))
			},
			"fails": func(*Post) error { return errors.New("no such luck") },
			"sleep": func(*Post) error { time.Sleep(bound); return nil },
		})
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startCrew(t *testing.T, role string, n, gates int) *Crew {
	t.Helper()
	c, err := Start(Spec{Role: role, N: n, Gates: gates, Task: func(int) any { return "word" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestGates(t *testing.T) {
	c := startCrew(t, "gates", 5, 2)
	var early int
	if err := c.Workers[0].Receive(&early, 20*time.Millisecond); !errors.Is(err, ErrLate) {
		t.Fatalf("got %d, %v before a gate was opened, want ErrLate", early, err)
	}
	for gate := range 2 {
		c.Open(gate)
		got, err := Gather[int](c, bound)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != i*10+gate {
				t.Errorf("worker %d reported %d at gate %d", i, v, gate)
			}
		}
	}
	for _, w := range c.Workers {
		if err := w.Ended(bound); err != nil {
			t.Error(err)
		}
	}
}

func TestTask(t *testing.T) {
	c := startCrew(t, "told", 1, 1)
	var word string
	var passed bool
	if err := errors.Join(c.Workers[0].Receive(&word, bound), c.Workers[0].Receive(&passed, bound)); err != nil {
		t.Fatal(err)
	}
	if word != "word" || passed {
		t.Errorf("got %q, %v", word, passed)
	}
}

func TestGivesUp(t *testing.T) {
	c := startCrew(t, "fails", 1, 0)
	var v any
	err := c.Workers[0].Receive(&v, bound)
	if err == nil || !strings.Contains(err.Error(), "exit status 1: no such luck") {
		t.Errorf("got %v, want how and why the worker ended", err)
	}
}

func TestDie(t *testing.T) {
	c := startCrew(t, "sleep", 2, 0)
	if err := c.Workers[1].Signal(syscall.SIGSTOP); err != nil { // Close must end this one too
		t.Fatal(err)
	}
	w := c.Workers[0]
	if err := w.Ended(10 * time.Millisecond); !errors.Is(err, ErrLate) {
		t.Fatalf("got %v, want ErrLate", err)
	}
	if err := w.Die(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := w.Ended(bound); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, want a death by SIGKILL", err)
	}
}

func TestSweep(t *testing.T) {
	c := startCrew(t, "sleep", 2, 0)
	defer func() { launched.swept = false }()
	Sweep()
	if _, err := Launch("a late one", exec.Command("true")); !errors.Is(err, ErrSwept) {
		t.Errorf("got %v, want ErrSwept", err)
	}
	for _, w := range c.Workers {
		if err := w.Ended(bound); err == nil {
			t.Errorf("worker %d ended well, want it killed", w.Index)
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
