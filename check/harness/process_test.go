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

	"ration/check/expect"
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
	expect.OK(t, err)
	return start(t, Spec{Name: program, Cmd: cmd})
}

func start(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(s)
	expect.OK(t, err)
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
	expect.OK(t, err)
	return text
}

func TestLines(t *testing.T) {
	p := sh(t, `while read -r line; do echo "got $line"; done; printf unended`, nil)
	p.Tell("%s %d", "one", 1)
	p.Tell("two")
	a, b := line(t, p), line(t, p)
	expect.True(t, a == "got one 1" && b == "got two", a, b)
	_, err := p.Line(time.Millisecond)
	expect.True(t, errors.Is(err, ErrLate), err, "want ErrLate")
	_ = p.in.Close()
	expect.Equal(t, line(t, p), "unended")
	_, err = p.Line(bound)
	expect.True(t, errors.Is(err, io.EOF), err, "want io.EOF")
}

// A line may be longer than any buffer.
func TestLongLine(t *testing.T) {
	const long = 1 << 20
	got := line(t, sh(t, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo`, long), nil))
	expect.Equal(t, len(got), long, "bytes of")
}

// The log has what was written before the line that was read, and the lines that
// were not kept; its end survives Close.
func TestLog(t *testing.T) {
	keep := func(line string) bool { return strings.HasPrefix(line, "ok") }
	p := sh(t, `echo noise; echo problem >&2; echo ok 1; seq 10000 >&2; echo last >&2; exit 7`, keep)
	expect.Equal(t, line(t, p), "ok 1")
	_, err := p.Line(bound)
	var exit *exec.ExitError
	expect.True(t, errors.As(err, &exit) && exit.ExitCode() == 7 && strings.HasSuffix(err.Error(), "exit status 7: "+p.Log()), err)
	for range 2 {
		// The line of stdout may stand anywhere among those of stderr, also last.
		log := p.Log()
		lines := slices.DeleteFunc(strings.Split(log, "\n"), func(line string) bool { return line == "noise" })
		end := lines[max(0, len(lines)-2):]
		expect.True(t, slices.Equal(end, []string{"10000", "last"}) && len(log) <= logged,
			"got a log of", len(log), "bytes that ends in", end)
		p.Close()
	}
	p = sh(t, `echo noise; echo problem >&2; echo ok`, keep)
	line(t, p)
	got := strings.Fields(p.Log())
	expect.Equal(t, len(got), 2, got, "want noise and problem")
}

// Telling a dead process raises no signal, and is reported by Line.
func TestTellTheDead(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGPIPE, unix.SIGWINCH)
	defer signal.Stop(signals)
	p := sh(t, "exit 3", nil)
	expect.True(t, p.Wait(bound) != nil, "exit status 3 is no error")
	p.Tell("anything")
	// Of two signals that are pending, the lower number comes first.
	expect.OK(t, unix.Kill(os.Getpid(), unix.SIGWINCH))
	expect.True(t, <-signals == unix.SIGWINCH)
	_, err := p.Line(bound)
	expect.True(t, err != nil && !errors.Is(err, ErrLate) && !errors.Is(err, io.EOF), err, "want how it ended")
}

func TestKillLeavesAZombie(t *testing.T) {
	p := sh(t, "exec sleep 1000", nil)
	err := p.Wait(time.Millisecond)
	expect.Must(t, errors.Is(err, ErrLate), err, "want ErrLate")
	q := sh(t, "exec sleep 1000", nil)
	expect.OK(t, q.Kill())
	expect.Equal(t, state(t, q.PID()), "Z", "after Kill it is")
	var exit *exec.ExitError
	err = q.Wait(bound)
	expect.True(t, errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL, err, "want a death by SIGKILL")
	expect.True(t, unix.Kill(q.PID(), 0) == unix.ESRCH, "after Wait")
}

func TestStopAndContinue(t *testing.T) {
	p := sh(t, "while read -r line; do echo $line; done", nil)
	expect.OK(t, p.Stop())
	expect.Equal(t, state(t, p.PID()), "T", "after Stop it is")
	<-p.StoppedOrDead()
	p.Tell("on")
	expect.OK(t, p.Continue())
	expect.Equal(t, line(t, p), "on")
	expect.OK(t, p.Stop()) // Close must end a stopped process as well
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
	expect.True(t, left <= 10*cap(p.lines), left, "lines were read after Close") // the pipe had thousands more
}

func TestKillAll(t *testing.T) {
	p, q := sh(t, "exec sleep 1000", nil), sh(t, "exit 0", nil)
	expect.OK(t, q.Wait(bound))
	defer func() { started.ending = false }()
	KillAll()
	expect.True(t, p.Wait(bound) != nil, "it ended by itself")
	_, err := Start(Spec{Name: "late", Cmd: exec.Command("true")})
	expect.True(t, errors.Is(err, ErrEnding), err, "want ErrEnding")
	expect.Equal(t, len(started.running), 0, "processes are still registered")
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
	expect.OK(t, err)
	fd, err := unix.PidfdOpen(pid, 0)
	expect.OK(t, err)
	defer unix.Close(fd)
	expect.OK(t, parent.Kill())
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
	text, err := p.Line(bound)
	expect.True(t, errors.Is(err, io.EOF), text, err)
}

// A gate wakes all processes that wait at it, when it opens and not before.
func TestGate(t *testing.T) {
	g, err := NewGate()
	expect.OK(t, err)
	defer g.Close()
	var waiting []*Process
	for range 3 {
		cmd := exec.Command("sh", "-c", "cat <&3; echo on")
		cmd.ExtraFiles = []*os.File{g.File()}
		waiting = append(waiting, start(t, Spec{Name: "sh", Cmd: cmd}))
	}
	_, err = waiting[0].Line(20 * time.Millisecond)
	expect.Must(t, errors.Is(err, ErrLate), "before the gate opens", err, "want ErrLate")
	g.Open()
	for _, p := range waiting {
		expect.Equal(t, line(t, p), "on")
	}
}

func TestStartFails(t *testing.T) {
	for name, s := range map[string]Spec{
		"no such program": {Name: "nothing", Cmd: exec.Command("/no/such/program")},
		"no such process": {Name: "beside", Cmd: exec.Command("true"), Beside: 1 << 30},
	} {
		p, err := Start(s)
		expect.True(t, err != nil && strings.Contains(err.Error(), "starting "+s.Name), name, p, err)
	}
}

// state returns the letter that the kernel has for a process's state.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	expect.OK(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
