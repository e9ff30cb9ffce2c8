package sleep

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ration/internal/gpu"
)

// Calls is the command that serves the driver's calls. Only ration itself starts it.
const Calls = "checkpoint-calls"

// errTimeout is returned for a call that the driver did not answer in time. It may still be under way in the process that
// it is about.
var errTimeout = errors.New("the driver does not answer")

// calls asks the driver in a child process: a call about a process that is stopped returns only when that process
// continues, whatever its timeout. The child is killed then, and the next call starts another.
type calls struct {
	child *exec.Cmd
	ready bool // the child has started the driver
	in    io.WriteCloser
	out   chan string // lines, closed at the child's end
}

// startTime is how long the child may take to start the driver.
const startTime = 30 * time.Second

// start starts the child. It does not wait until the child has started the driver: the first call does.
func (c *calls) start() error {
	if c.child != nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, Calls)
	for _, entry := range os.Environ() {
		// The child is in no job.
		if !strings.HasPrefix(entry, "LD_PRELOAD=") && !strings.HasPrefix(entry, "RATION_REGION=") {
			child.Env = append(child.Env, entry)
		}
	}
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := child.StdinPipe()
	if err != nil {
		return err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", Calls, err)
	}
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	c.child, c.ready, c.in, c.out = child, false, in, lines
	return nil
}

// started returns when the child has started the driver.
func (c *calls) started() error {
	if err := c.start(); err != nil || c.ready {
		return err
	}
	text, err := c.line(startTime)
	if err != nil {
		return fmt.Errorf("starting CUDA: %w", err)
	}
	if text != "" {
		c.close()
		return errors.New(text)
	}
	c.ready = true
	return nil
}

// line returns the child's next line.
func (c *calls) line(most time.Duration) (string, error) {
	select {
	case text, open := <-c.out:
		if !open {
			c.close()
			return "", errTimeout
		}
		return text, nil
	case <-time.After(most):
		c.close()
		return "", errTimeout
	}
}

// close ends the child.
func (c *calls) close() {
	if c.child == nil {
		return
	}
	_ = c.child.Process.Kill()
	_ = c.in.Close()
	for range c.out { // until its end
	}
	_ = c.child.Wait()
	c.child = nil
}

// ask sends a request and returns the value of the answer.
func (c *calls) ask(request string, most time.Duration) (int, error) {
	if err := c.started(); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(c.in, request+"\n"); err != nil {
		c.close()
		return 0, errTimeout
	}
	text, err := c.line(most)
	if err != nil {
		return 0, err
	}
	var code, value int
	if _, err := fmt.Sscanf(text, "%d %d", &code, &value); err != nil {
		c.close()
		return 0, fmt.Errorf("%s answered %q", Calls, text)
	}
	if code != 0 {
		return 0, gpu.CUDAError(code)
	}
	return value, nil
}

// state returns a process's state in the driver.
func (c *calls) state(pid int) (gpu.CheckpointState, error) {
	value, err := c.ask(fmt.Sprintf("state %d", pid), startTime)
	return gpu.CheckpointState(value), err
}

// call asks the driver to change the state. wait is the driver's own timeout, for a lock.
func (c *calls) call(call gpu.CheckpointCall, pid int, wait, most time.Duration) error {
	_, err := c.ask(fmt.Sprintf("%d %d %d", call, pid, wait.Milliseconds()), most)
	return err
}

// ServeCalls is the child: it answers each line with a line, until the end of in. Its first line is empty, or says why it
// cannot.
func ServeCalls(in io.Reader, out io.Writer) error {
	if err := gpu.OpenCheckpoint(); err != nil {
		_, err = fmt.Fprintln(out, err)
		return err
	}
	_, err := fmt.Fprintln(out)
	for s := bufio.NewScanner(in); err == nil && s.Scan(); {
		value, failed := serveCall(strings.Fields(s.Text()))
		var code gpu.CUDAError
		if failed != nil && !errors.As(failed, &code) {
			return failed
		}
		_, err = fmt.Fprintln(out, int(code), value)
	}
	return err
}

func serveCall(words []string) (int, error) {
	var n [3]int
	for i, word := range words[:min(len(words), len(n))] {
		n[i], _ = strconv.Atoi(word)
	}
	if len(words) > 0 && words[0] == "state" {
		state, err := gpu.CheckpointStateOf(n[1])
		return int(state), err
	}
	return 0, gpu.CallCheckpoint(gpu.CheckpointCall(n[0]), n[1], time.Duration(n[2])*time.Millisecond)
}
