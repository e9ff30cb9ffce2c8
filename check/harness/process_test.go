package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const bound = time.Minute

// asSelf are the programs that the test binary is when it is started again.
var asSelf = map[string]func() error{
	"parent":  startStopped,
	"adopter": adoptAndKill,
}

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || asSelf[os.Args[1]] == nil {
		os.Exit(m.Run())
	}
	if err := asSelf[os.Args[1]](); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

func again(t *testing.T, program string) *Process {
	t.Helper()
	cmd, err := Again(program)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, Spec{Name: program, Cmd: cmd})
}

func start(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func sh(t *testing.T, script string, keep func(string) bool) *Process {
	t.Helper()
	return start(t, Spec{Name: "sh", Cmd: exec.Command("sh", "-c", script), Keep: keep})
}

func line(t *testing.T, p *Process) string {
	t.Helper()
	text, err := p.Line(bound)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestLines(t *testing.T) {
	p := sh(t, `while read -r line; do echo "got $line"; done; printf unended`, nil)
	p.Tell("%s %d", "one", 1)
	p.Tell("two")
	if a, b := line(t, p), line(t, p); a != "got one 1" || b != "got two" {
		t.Errorf("got %q, %q", a, b)
	}
	if _, err := p.Line(time.Millisecond); !errors.Is(err, ErrLate) {
		t.Errorf("got %v, want ErrLate", err)
	}
	_ = p.in.Close()
	if got := line(t, p); got != "unended" {
		t.Errorf("got %q", got)
	}
	if _, err := p.Line(bound); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want io.EOF", err)
	}
}

// A line may be longer than any buffer.
func TestLongLine(t *testing.T) {
	const long = 1 << 20
	if got := line(t, sh(t, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo`, long), nil)); len(got) != long {
		t.Errorf("got %d bytes of %d", len(got), long)
	}
}

// The log has what was written before the line that was read, and the lines that
// were not kept; its end survives Close.
func TestLog(t *testing.T) {
	keep := func(line string) bool { return strings.HasPrefix(line, "ok") }
	p := sh(t, `echo noise; echo problem >&2; echo ok 1; seq 10000 >&2; echo last >&2; exit 7`, keep)
	if got := line(t, p); got != "ok 1" {
		t.Errorf("got %q", got)
	}
	_, err := p.Line(bound)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.HasSuffix(err.Error(), "exit status 7: "+p.Log()) {
		t.Errorf("got %v", err)
	}
	for range 2 {
		// The line of stdout may stand anywhere among those of stderr, also last.
		log := p.Log()
		lines := slices.DeleteFunc(strings.Split(log, "\n"), func(line string) bool { return line == "noise" })
		if end := lines[max(0, len(lines)-2):]; !slices.Equal(end, []string{"10000", "last"}) || len(log) > logged {
			t.Errorf("got a log of %d bytes that ends in %q", len(log), end)
		}
		p.Close()
	}
	p = sh(t, `echo noise; echo problem >&2; echo ok`, keep)
	line(t, p)
	if got := strings.Fields(p.Log()); len(got) != 2 {
		t.Errorf("got %q, want noise and problem", got)
	}
}

// Telling a dead process raises no signal, and is reported by Line.
func TestTellTheDead(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGPIPE, unix.SIGWINCH)
	defer signal.Stop(signals)
	p := sh(t, "exit 3", nil)
	if err := p.Wait(bound); err == nil {
		t.Error("exit status 3 is no error")
	}
	p.Tell("anything")
	// Of two signals that are pending, the lower number comes first.
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if got := <-signals; got != unix.SIGWINCH {
		t.Errorf("got %v", got)
	}
	if _, err := p.Line(bound); err == nil || errors.Is(err, ErrLate) || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want how it ended", err)
	}
}

func TestKillLeavesAZombie(t *testing.T) {
	p := sh(t, "exec sleep 1000", nil)
	if err := p.Wait(time.Millisecond); !errors.Is(err, ErrLate) {
		t.Fatalf("got %v, want ErrLate", err)
	}
	q := sh(t, "exec sleep 1000", nil)
	if err := q.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := state(t, q.PID()); got != "Z" {
		t.Errorf("after Kill it is %s", got)
	}
	var exit *exec.ExitError
	if err := q.Wait(bound); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, want a death by SIGKILL", err)
	}
	if err := unix.Kill(q.PID(), 0); err != unix.ESRCH {
		t.Errorf("after Wait: %v", err)
	}
}

func TestStopAndContinue(t *testing.T) {
	p := sh(t, "while read -r line; do echo $line; done", nil)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := state(t, p.PID()); got != "T" {
		t.Errorf("after Stop it is %s", got)
	}
	<-p.StoppedOrDead()
	p.Tell("on")
	if err := p.Continue(); err != nil {
		t.Fatal(err)
	}
	if got := line(t, p); got != "on" {
		t.Errorf("got %q", got)
	}
	if err := p.Stop(); err != nil { // for Close, which must end it all the same
		t.Fatal(err)
	}
}

// Close ends a process whose lines are not read, and the goroutine that reads its output.
func TestCloseWithLinesUnread(t *testing.T) {
	p := sh(t, "exec yes", nil)
	line(t, p)
	p.Close()
	left := 0
	for range p.Lines() {
		left++
	}
	if left > 10*cap(p.lines) { // the pipe had thousands more
		t.Errorf("%d lines were read after Close", left)
	}
}

func TestKillAll(t *testing.T) {
	p, q := sh(t, "exec sleep 1000", nil), sh(t, "exit 0", nil)
	if err := q.Wait(bound); err != nil {
		t.Fatal(err)
	}
	defer func() { started.ending = false }()
	KillAll()
	if err := p.Wait(bound); err == nil {
		t.Error("it ended by itself")
	}
	if _, err := Start(Spec{Name: "late", Cmd: exec.Command("true")}); !errors.Is(err, ErrEnding) {
		t.Errorf("got %v, want ErrEnding", err)
	}
	if len(started.running) != 0 {
		t.Errorf("%d processes are still registered", len(started.running))
	}
}

// startStopped starts a process, stops it, prints its PID and waits.
func startStopped() error {
	p, err := Start(Spec{Name: "orphan", Cmd: exec.Command("sleep", "1000")})
	if err != nil {
		return err
	}
	if err := p.Stop(); err != nil {
		return err
	}
	fmt.Println(p.PID())
	time.Sleep(bound)
	return nil
}

// A process dies with this program, even if it is stopped and this program had no
// time to kill it.
func TestDiesWithItsParent(t *testing.T) {
	parent := again(t, "parent")
	pid, err := strconv.Atoi(line(t, parent))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := parent.Kill(); err != nil {
		t.Fatal(err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(bound.Milliseconds()))
	for err == unix.EINTR {
		n, err = unix.Poll(fds, int(bound.Milliseconds()))
	}
	if err != nil || n != 1 {
		t.Errorf("the child of a killed program lives: %v", err)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// adoptAndKill adopts what a shell leaves behind, kills it, and checks that it is gone. It
// needs a process of its own: an adopter takes the processes of other tests for its own.
func adoptAndKill() error {
	KillDescendants() // does nothing before Adopt
	if err := Adopt(); err != nil {
		return err
	}
	// The second shell ends at once, and leaves a program that ignores the signals it can
	// ignore, with a child of its own.
	out, err := exec.Command("sh", "-c", `sh -c 'trap "" TERM INT HUP; sleep 1000 & sleep 1000' >/dev/null 2>&1 & echo $!`).Output()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, 0); err != nil {
		return fmt.Errorf("it did not outlive its shell: %w", err)
	}
	KillDescendants()
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		return fmt.Errorf("it still runs: %v", err)
	}
	if left := childPIDs(); len(left) > 0 {
		return fmt.Errorf("these still run: %v", left)
	}
	return nil
}

func TestKillDescendants(t *testing.T) {
	p := again(t, "adopter")
	if text, err := p.Line(bound); !errors.Is(err, io.EOF) {
		t.Error(text, err)
	}
}

// A gate wakes all processes that wait at it, when it opens and not before.
func TestGate(t *testing.T) {
	g, err := NewGate()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var waiting []*Process
	for range 3 {
		cmd := exec.Command("sh", "-c", "cat <&3; echo on")
		cmd.ExtraFiles = []*os.File{g.File()}
		waiting = append(waiting, start(t, Spec{Name: "sh", Cmd: cmd}))
	}
	if _, err := waiting[0].Line(20 * time.Millisecond); !errors.Is(err, ErrLate) {
		t.Fatalf("before the gate opens: %v, want ErrLate", err)
	}
	g.Open()
	for _, p := range waiting {
		if got := line(t, p); got != "on" {
			t.Errorf("got %q", got)
		}
	}
}

func TestStartFails(t *testing.T) {
	for name, s := range map[string]Spec{
		"no such program": {Name: "nothing", Cmd: exec.Command("/no/such/program")},
		"no such process": {Name: "beside", Cmd: exec.Command("true"), Beside: 1 << 30},
	} {
		if p, err := Start(s); err == nil || !strings.Contains(err.Error(), "starting "+s.Name) {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
}

// state returns the letter that the kernel has for a process's state.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
