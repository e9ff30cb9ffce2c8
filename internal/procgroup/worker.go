package procgroup

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Worker is one process of a crew, as the one who started it sees it.
type Worker struct {
	*Process
	Index int

	crew    *Crew
	reports chan json.RawMessage
	why     string // it gave up; set before reports is closed
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
