package gputest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"ration/internal/procgroup"
)

// Program is one that was started for a check. It says on its standard output how
// far it has come, in lines of its own,
//
//	step NAME KEY=VALUE ...   and goes on when it reads a line
//	fail TEXT                 something is wrong
//	skip TEXT                 this machine cannot do it
//
// and whatever else it prints is kept for the case that something goes wrong. A
// program that measures is told lines instead, and answers each with `ok` and
// figures.
type Program struct {
	*procgroup.Process

	in     *os.File
	alsoIn *os.File // the other end: telling the dead must not be the end of us, by SIGPIPE
	lines  chan string
	tail   *procgroup.Tail
}

// Step is how far a program has come.
type Step struct {
	Name   string
	values map[string]string
}

// patience is how long a program may take for a step: frameworks are imported,
// kernels compiled.
const patience = 3 * time.Minute

// start starts a program with these variables beside the machine's own.
func (m *Machine) start(env []string, command ...string) (_ *Program, err error) {
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		_, _ = theirs.Close(), in.Close()
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer w.Close()
	p := &Program{in: in, alsoIn: theirs, lines: make(chan string, 64), tail: &procgroup.Tail{}}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = m.environ(env...), theirs, w, p.tail, m.scratch
	cmd.WaitDelay = time.Second // somebody's child may keep standard error open
	if p.Process, err = procgroup.Launch(command[0], cmd); err != nil {
		_, _, _ = theirs.Close(), in.Close(), out.Close()
		return nil, err
	}
	go p.listen(out)
	return p, nil
}

func (p *Program) listen(from io.ReadCloser) {
	defer from.Close()
	defer close(p.lines)
	for s := bufio.NewScanner(from); s.Scan(); {
		switch word, _, _ := strings.Cut(s.Text(), " "); word {
		case "step", "fail", "skip", "ok", "oom", "error":
			p.lines <- s.Text()
		default:
			fmt.Fprintln(p.tail, s.Text())
		}
	}
}

// line waits for the next one that is meant for us.
func (p *Program) line(within time.Duration) (string, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case line, open := <-p.lines:
		if open {
			return line, nil
		}
		if err := p.Ended(10 * time.Second); err != nil {
			return "", fmt.Errorf("pid %d ended: %w", p.PID(), err)
		}
		return "", fmt.Errorf("pid %d ended: %w", p.PID(), io.EOF)
	case <-timer.C:
		return "", fmt.Errorf("waiting for pid %d: %w", p.PID(), procgroup.ErrLate)
	}
}

// Step waits for the next step, whatever it is called.
func (p *Program) Step() (Step, error) {
	line, err := p.line(patience)
	if err != nil {
		return Step{}, err
	}
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "skip":
		return Step{}, fmt.Errorf("%w: %s", ErrUnsuited, rest)
	case "fail":
		return Step{}, fmt.Errorf("pid %d: %s", p.PID(), rest)
	case "step":
	default:
		return Step{}, fmt.Errorf("pid %d said %q, not a step", p.PID(), line)
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return Step{}, fmt.Errorf("pid %d said a step without a name", p.PID())
	}
	step := Step{Name: fields[0], values: map[string]string{}}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		step.values[key] = value
	}
	return step, nil
}

// At waits for a step by its name.
func (p *Program) At(name string) (Step, error) {
	step, err := p.Step()
	if err == nil && step.Name != name {
		err = fmt.Errorf("pid %d is at %s, not at %s", p.PID(), step.Name, name)
	}
	return step, err
}

// GoOn lets the program leave the step it is at.
func (p *Program) GoOn() error { return p.tell("") }

func (p *Program) tell(line string) error {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return fmt.Errorf("telling pid %d: %w", p.PID(), err)
	}
	return nil
}

// Finish lets the program leave its last step, and waits for its end.
func (p *Program) Finish() error {
	if err := p.GoOn(); err != nil {
		return err
	}
	line, err := p.line(patience)
	switch {
	case err == nil:
		return fmt.Errorf("pid %d said %q, and should have ended", p.PID(), line)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// figures reads an answer: `ok` and numbers.
func (p *Program) figures() ([]float64, error) {
	line, err := p.line(patience)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(line)
	if words[0] != "ok" {
		return nil, fmt.Errorf("pid %d said %q", p.PID(), line)
	}
	var out []float64
	for _, word := range words[1:] {
		_, figure, named := strings.Cut(word, "=")
		if !named {
			figure = word
		}
		f, err := strconv.ParseFloat(figure, 64)
		if err != nil {
			return nil, fmt.Errorf("reading an answer of pid %d: %w", p.PID(), err)
		}
		out = append(out, f)
	}
	return out, nil
}

// ask tells the program something, and reads at least so many figures.
func (p *Program) ask(least int, format string, args ...any) ([]float64, error) {
	if err := p.tell(fmt.Sprintf(format, args...)); err != nil {
		return nil, err
	}
	f, err := p.figures()
	if err == nil && len(f) < least {
		err = fmt.Errorf("pid %d answered with %d figures, not %d", p.PID(), len(f), least)
	}
	return f, err
}

// Close ends the program, if it has not ended.
func (p *Program) Close() {
	p.Process.Close()
	_, _ = p.in.Close(), p.alsoIn.Close()
}

// Bytes is a figure of a step.
func (s Step) Bytes(key string) (uint64, error) {
	n, err := strconv.ParseUint(s.values[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("step %s: %s=%q is not a number", s.Name, key, s.values[key])
	}
	return n, nil
}
