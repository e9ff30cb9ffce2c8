package crew

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Worker is one process of a crew, as the one who started it sees it.
type Worker struct {
	Index int

	crew    *Crew
	cmd     *exec.Cmd
	reports chan json.RawMessage
	why     string // it gave up; set before reports is closed

	once  sync.Once
	ended chan struct{}
	err   error
}

// PID is the worker's, as this process sees it. It stays its own until Ended.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Signal sends the worker a signal.
func (w *Worker) Signal(sig syscall.Signal) error {
	if err := w.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to worker %d: %w", sig, w.Index, err)
	}
	return nil
}

// Receive takes the worker's next report into v.
func (w *Worker) Receive(v any, within time.Duration) error {
	timer := time.NewTimer(max(within, 0))
	defer timer.Stop()
	select {
	case raw, open := <-w.reports:
		if !open {
			return w.endedEarly()
		}
		if err := json.Unmarshal(raw, v); err != nil {
			return fmt.Errorf("reading a report of worker %d: %w", w.Index, err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("waiting for a report of worker %d (pid %d): %w", w.Index, w.PID(), ErrLate)
	}
}

func (w *Worker) endedEarly() error {
	how := "its reports ended"
	select {
	case <-w.wait():
		how = w.cmd.ProcessState.String()
	case <-time.After(time.Second):
	}
	why := w.why
	if why == "" { // it did not get to say; perhaps it panicked
		why = w.crew.stderr.String()
	}
	return fmt.Errorf("worker %d (pid %d) gave up: %s: %s", w.Index, w.PID(), how, why)
}

// Ended waits for the worker's end. Its error is how the worker ended, if not
// by itself and well.
func (w *Worker) Ended(within time.Duration) error {
	select {
	case <-w.wait():
		return w.err
	case <-time.After(within):
		return fmt.Errorf("waiting for worker %d (pid %d) to end: %w", w.Index, w.PID(), ErrLate)
	}
}

// Die kills the worker, and returns when the kernel has taken all from it. It
// stays a zombie until Ended, so that its PID is nobody else's meanwhile.
func (w *Worker) Die() error {
	if err := w.Signal(unix.SIGKILL); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, w.PID(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil || err == unix.ECHILD {
			return nil // the second: an earlier Ended was waiting, and has seen it off
		}
		if err != unix.EINTR {
			return fmt.Errorf("waiting for the death of worker %d: %w", w.Index, err)
		}
	}
}

func (w *Worker) kill() { _ = w.cmd.Process.Signal(unix.SIGKILL) }

func (w *Worker) wait() <-chan struct{} {
	w.once.Do(func() {
		w.ended = make(chan struct{})
		go func() {
			w.err = w.cmd.Wait()
			close(w.ended)
		}()
	})
	return w.ended
}

// listen passes reports on until the worker's end of the pipe is closed.
func (w *Worker) listen(from *os.File) {
	defer from.Close()
	defer close(w.reports)
	dec := json.NewDecoder(from)
	for {
		var m message
		if dec.Decode(&m) != nil {
			return
		}
		if m.Error != "" {
			w.why = m.Error
			return
		}
		w.reports <- m.Report
	}
}
