package workload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/procgroup"
	"ration/internal/region"
)

// ErrDriver is returned when a call of the driver gave neither success nor out of
// memory.
var ErrDriver = errors.New("driver returned an error")

// Program is one running CUDA program. It is told a line and answers it; lines and
// answers are explained in testprog/workload/workload.c.
type Program struct {
	*procgroup.Process

	in      *os.File
	alsoIn  *os.File // the other end: telling the dead must not be the end of us, by SIGPIPE
	answers chan string
	log     string // the file of what it and the library said
}

// Answer is what became of a line.
type Answer struct {
	OutOfMemory bool
	Figures     []int64
	Slowest     time.Duration // of the driver's calls
}

// Start starts a program in the job, or outside.
func (m *Machine) Start(inside bool) (*Program, error) {
	m.started++
	what := fmt.Sprintf("program %d", m.started)
	log, err := os.OpenFile(filepath.Join(filepath.Dir(m.Region), "log."+strconv.Itoa(m.started)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making a log for %s: %w", what, err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe from %s: %w", what, err)
	}
	defer w.Close()
	theirs, ours, err := os.Pipe()
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("making a pipe to %s: %w", what, err)
	}
	cmd := exec.Command(m.program)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = m.environ(inside), theirs, w, log
	process, err := procgroup.Launch(what, cmd)
	if err != nil {
		_, _, _ = r.Close(), theirs.Close(), ours.Close()
		return nil, err
	}
	p := &Program{Process: process, in: ours, alsoIn: theirs, answers: make(chan string, 4), log: log.Name()}
	go p.listen(r)
	return p, nil
}

// Close ends the program, if it has not ended, and sees it off.
func (p *Program) Close() {
	p.Process.Close()
	_, _ = p.in.Close(), p.alsoIn.Close()
}

func (p *Program) listen(from io.ReadCloser) {
	defer from.Close()
	defer close(p.answers)
	for s := bufio.NewScanner(from); s.Scan(); {
		p.answers <- s.Text()
	}
}

// Tell tells the program to do something, and does not wait.
func (p *Program) Tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return fmt.Errorf("telling pid %d: %w", p.PID(), err)
	}
	return nil
}

// TellInit tells programs to start using the device, all at the same instant.
func TellInit(all []*Program) error {
	// Each is told before: reading a line takes the time of somebody who may be
	// faster than we are at telling the next.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("reading the clock: %w", err)
	}
	at := now.Nano() + int64(5*time.Millisecond) + int64(len(all))*int64(50*time.Microsecond)
	for _, p := range all {
		if err := p.Tell("init %d", at); err != nil {
			return err
		}
	}
	return nil
}

// Answer waits for the next answer.
func (p *Program) Answer(within time.Duration) (a Answer, err error) {
	timer := time.NewTimer(max(within, 0))
	defer timer.Stop()
	select {
	case line, open := <-p.answers:
		if !open {
			return a, p.gaveUp(io.ErrUnexpectedEOF)
		}
		return p.read(line)
	case <-timer.C:
		return a, fmt.Errorf("waiting for an answer of pid %d: %w", p.PID(), procgroup.ErrLate)
	}
}

// Do tells the program something and waits for the answer.
func (p *Program) Do(within time.Duration, format string, args ...any) (Answer, error) {
	if err := p.Tell(format, args...); err != nil {
		return Answer{}, err
	}
	return p.Answer(within)
}

func (p *Program) read(line string) (a Answer, err error) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] == "error" {
		return a, fmt.Errorf("pid %d: %w: %s: %s", p.PID(), ErrDriver, line, p.said())
	}
	a.OutOfMemory = words[0] == "oom"
	for _, word := range words[1:] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return a, fmt.Errorf("reading an answer of pid %d: %w", p.PID(), err)
		}
		a.Figures = append(a.Figures, n)
	}
	a.Slowest = time.Duration(a.Figures[len(a.Figures)-1])
	return a, nil
}

// gaveUp says how and why the program has ended.
func (p *Program) gaveUp(err error) error {
	if end := p.Ended(time.Second); end != nil {
		err = end
	}
	return fmt.Errorf("pid %d gave up: %w: %s", p.PID(), err, p.said())
}

// said is the end of what the program and the library complained about.
func (p *Program) said() string {
	text, _ := os.ReadFile(p.log) // what cannot be read was not said
	const most = 2000
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// roles are the library's words for how a process came by the region.
var roles = map[string]region.Role{
	"ready, on the fast path":                               region.FastPath,
	"ready, after waiting for its initialiser":              region.Waited,
	"initialised in place of a process that did not finish": region.Helped,
	"initialised by this process":                           region.Initialiser,
}

// Role is how the program came by the region, by the library's own account.
func (p *Program) Role() (region.Role, error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return 0, fmt.Errorf("reading what the library said: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		for words, role := range roles {
			if strings.Contains(line, ": "+words+" (pid "+strconv.Itoa(p.PID())+")") {
				return role, nil
			}
		}
	}
	return 0, fmt.Errorf("pid %d: the library did not say how it came by the region: %s", p.PID(), p.said())
}

// Used is what all programs together have of the device, as the driver tells a
// program outside the job. It agrees with anything only while nobody is busy.
func (p *Program) Used(within time.Duration) (uint64, error) {
	a, err := p.Do(within, "info")
	if err != nil {
		return 0, err
	}
	if len(a.Figures) != 3 {
		return 0, fmt.Errorf("pid %d: %d figures of the device, not 3", p.PID(), len(a.Figures))
	}
	return uint64(a.Figures[1] - a.Figures[0]), nil
}
