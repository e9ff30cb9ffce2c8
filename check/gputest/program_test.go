package gputest

import (
	"errors"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/check/expect"
	"ration/check/harness"
)

// program is a program that was started for a trial. On its standard output it
// prints how far it has come,
//
//	step NAME KEY=VALUE ...   it has reached a step, and goes on when it reads a line
//	fail TEXT                 something is wrong
//	skip TEXT                 this machine cannot do it
//
// and any other output goes to its log. A program that measures is told commands
// instead, one a line, and answers each with `ok` and numbers. What a program should not
// have printed ends the test.
type program struct {
	*harness.Process
	t *trial
}

// step is a step that a program has reached.
type step struct {
	name   string
	values map[string]string
}

// stepWithin is how long a program may take for a step: frameworks are imported,
// kernels are compiled.
const stepWithin = 3 * time.Minute

// start starts a program, in the job if there is one.
func (t *trial) start(env []string, command ...string) *program {
	t.Helper()
	command = t.inJob(command)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Dir = t.environ(slices.Concat(t.env, env, []string{markVariable + t.mark})...), t.scratch
	process, err := harness.Start(harness.Spec{Name: command[0], Cmd: cmd, Keep: isAnswer})
	t.must(err)
	p := &program{process, t}
	t.programs = append(t.programs, p)
	return p
}

// isAnswer returns whether a line of output is meant for the tester.
func isAnswer(line string) bool {
	word, _, _ := strings.Cut(line, " ")
	return slices.Contains([]string{"step", "fail", "skip", "ok", "oom", "error"}, word)
}

// line waits for the next line.
func (p *program) line() string {
	p.t.Helper()
	line, err := p.Line(stepWithin)
	p.t.must(err)
	return line
}

// step waits for the next step. It returns false if the program has ended instead.
func (p *program) step() (s step, more bool) {
	p.t.Helper()
	line, err := p.Line(stepWithin)
	if errors.Is(err, io.EOF) {
		return s, false
	}
	p.t.must(err)
	fields := strings.Fields(line)
	if fields[0] == "skip" {
		p.t.Skipf("%s", line)
	}
	expect.Must(p.t, fields[0] == "step" && len(fields) >= 2, "pid", p.PID(), "printed", line, "not a step")
	s = step{name: fields[1], values: map[string]string{}}
	for _, field := range fields[2:] {
		key, value, _ := strings.Cut(field, "=")
		s.values[key] = value
	}
	return s, true
}

// at waits for the next step, which must have this name.
func (p *program) at(name string) step {
	p.t.Helper()
	s, more := p.step()
	expect.Must(p.t, more && s.name == name, "pid", p.PID(), "is at step", s.name, "or has ended, and should be at", name)
	return s
}

// finish lets the program leave its last step, and waits for its end.
func (p *program) finish() {
	p.t.Helper()
	p.Tell("")
	s, more := p.step()
	expect.Must(p.t, !more, "pid", p.PID(), "is at", s.name, "and should have ended")
}

// kill kills the program.
func (p *program) kill() {
	p.t.Helper()
	p.t.must(p.Kill())
}

// numbers reads an answer: `ok` and numbers, of which there must be at least so
// many.
func (p *program) numbers(least int) (out []float64) {
	p.t.Helper()
	line := p.line()
	words := strings.Fields(line)
	for _, word := range words[1:] {
		n, err := strconv.ParseFloat(word[strings.Index(word, "=")+1:], 64) // a number, or NAME=number
		if err != nil {
			break
		}
		out = append(out, n)
	}
	expect.Must(p.t, words[0] == "ok" && len(out) == len(words)-1 && len(out) >= least,
		"pid", p.PID(), "answered", line, "not ok and", least, "numbers")
	return out
}

// ask tells the program a command, and reads an answer of at least so many numbers.
func (p *program) ask(least int, format string, args ...any) []float64 {
	p.t.Helper()
	p.Tell(format, args...)
	return p.numbers(least)
}

// bytes returns a value of a step.
func (s step) bytes(t *trial, key string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s.values[key], 10, 64)
	expect.OK(t, err, "step", s.name, key, s.values[key], "is not a number")
	return n
}
