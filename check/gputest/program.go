package gputest

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"ration/check/harness"
)

// Program is a program that was started for a trial. On its standard output it
// prints how far it has come,
//
//	step NAME KEY=VALUE ...   it has reached a step, and goes on when it reads a line
//	fail TEXT                 something is wrong
//	skip TEXT                 this machine cannot do it
//
// and any other output goes to its log. A program that measures is told commands
// instead, one a line, and answers each with `ok` and numbers.
type Program struct{ *harness.Process }

// Step is a step that a program has reached.
type Step struct {
	Name   string
	values map[string]string
}

// stepWithin is how long a program may take for a step: frameworks are imported,
// kernels are compiled.
const stepWithin = 3 * time.Minute

// start starts a program with these variables beside the machine's own.
func (m *Machine) start(env []string, command ...string) (*Program, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Dir = m.environ(env...), m.scratch
	p, err := harness.Start(harness.Spec{Name: command[0], Cmd: cmd, Keep: isAnswer})
	if err != nil {
		return nil, err
	}
	return &Program{p}, nil
}

// isAnswer returns whether a line of output is meant for the tester.
func isAnswer(line string) bool {
	switch word, _, _ := strings.Cut(line, " "); word {
	case "step", "fail", "skip", "ok", "oom", "error":
		return true
	}
	return false
}

// Step waits for the next step.
func (p *Program) Step() (Step, error) {
	line, err := p.Line(stepWithin)
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
		return Step{}, fmt.Errorf("pid %d printed %q, not a step", p.PID(), line)
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return Step{}, fmt.Errorf("pid %d printed a step without a name", p.PID())
	}
	step := Step{Name: fields[0], values: map[string]string{}}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		step.values[key] = value
	}
	return step, nil
}

// At waits for the next step, which must have this name.
func (p *Program) At(name string) (Step, error) {
	step, err := p.Step()
	if err == nil && step.Name != name {
		err = fmt.Errorf("pid %d is at %s, not at %s", p.PID(), step.Name, name)
	}
	return step, err
}

// Next lets the program leave the step it is at.
func (p *Program) Next() { p.Tell("") }

// Finish lets the program leave its last step, and waits for its end.
func (p *Program) Finish() error {
	p.Next()
	line, err := p.Line(stepWithin)
	switch {
	case err == nil:
		return fmt.Errorf("pid %d printed %q instead of ending", p.PID(), line)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// numbers reads an answer: `ok` and numbers, of which there must be at least so
// many.
func (p *Program) numbers(least int) ([]float64, error) {
	line, err := p.Line(stepWithin)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(line)
	if words[0] != "ok" {
		return nil, fmt.Errorf("pid %d answered %q", p.PID(), line)
	}
	var out []float64
	for _, word := range words[1:] {
		_, number, named := strings.Cut(word, "=")
		if !named {
			number = word
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("reading an answer of pid %d: %w", p.PID(), err)
		}
		out = append(out, n)
	}
	if len(out) < least {
		return nil, fmt.Errorf("pid %d answered with %d numbers, not %d", p.PID(), len(out), least)
	}
	return out, nil
}

// ask tells the program a command, and reads an answer of at least so many numbers.
func (p *Program) ask(least int, format string, args ...any) ([]float64, error) {
	p.Tell(format, args...)
	return p.numbers(least)
}

// Bytes returns a value of a step.
func (s Step) Bytes(key string) (uint64, error) {
	n, err := strconv.ParseUint(s.values[key], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("step %s: %s=%q is not a number", s.Name, key, s.values[key])
	}
	return n, nil
}
