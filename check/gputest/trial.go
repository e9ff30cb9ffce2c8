package gputest

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
	"ration/internal/job"
)

// Trial is a check or a measurement in progress: a job, the programs in it, and the
// values measured so far.
type Trial struct {
	*Machine
	quick    bool
	job      job.Job   // without a name before open
	limit    uint64    // of the job, in bytes
	flags    []string  // of ration run, besides those of name and limit
	joined   []job.Job // all jobs of the trial that share the device
	env      []string
	mark     string // in the environment of all its processes: see markVariable
	programs []*Program
	known    pidSet // host PIDs of all processes that were ever in the region
	notes    []string
	values   map[string]int64

	mostAtRest uint64 // the driver's highest count for the job in compare, in bytes
	managed    bool   // the programs use managed memory, which the driver lists for no process
	unlisted   uint64 // bytes of managed memory at this step
	poolSlack  uint64 // bytes of a refused request that a pool may keep until its program next waits for the device
}

// newTrial makes a trial without a job.
func (m *Machine) newTrial(quick bool) *Trial {
	m.trials++
	return &Trial{Machine: m, quick: quick, mark: fmt.Sprintf("%s/%d.", m.scratch, m.trials), values: map[string]int64{}}
}

// note adds to the summary.
func (t *Trial) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (t *Trial) summary() string { return strings.Join(t.notes, "; ") }

// record keeps a value; of several with one name, the one of the largest magnitude.
func (t *Trial) record(name string, value int64) {
	if old, there := t.values[name]; !there || abs(value) > abs(old) {
		t.values[name] = value
	}
}

// noteDifference adds to the summary the largest difference between ration's count
// and the driver's.
func (t *Trial) noteDifference() {
	var largest int64
	for name, value := range t.values {
		if strings.HasPrefix(name, differencePrefix) && abs(value) > abs(largest) {
			largest = value
		}
	}
	sign := "+"
	if largest < 0 {
		sign = "-"
	}
	t.note("counts within %s%s", sign, humanfmt.Bytes(uint64(abs(largest))))
}

func abs(n int64) int64 { return max(n, -n) }

// logs returns the end of the log of each program that has one.
func (t *Trial) logs() string {
	var out []string
	for _, p := range t.programs {
		if log := p.Log(); log != "" {
			out = append(out, fmt.Sprintf("pid %d: %s", p.PID(), log))
		}
	}
	return strings.Join(out, "\n")
}

// open makes a job with a limit. Programs that are started from now on are in it.
func (t *Trial) open(limit uint64) error {
	t.jobs++
	name := fmt.Sprintf("test-%d", t.jobs)
	path, err := job.RegionPath(name)
	t.job, t.limit = job.Job{Name: name, Path: path}, limit
	return err
}

// inJob returns the command that starts another one in the job, or the other one
// itself if there is no job.
func (t *Trial) inJob(command []string) []string {
	if t.job.Name == "" {
		return command
	}
	return slices.Concat([]string{t.Bundle.file("ration"), "run", "--name", t.job.Name, "--join", "--mem", strconv.FormatUint(t.limit, 10)},
		t.flags, []string{"--"}, command)
}

// start starts a program, in the job if there is one.
func (t *Trial) start(env []string, command ...string) (*Program, error) {
	p, err := t.Machine.start(slices.Concat(t.env, env, []string{markVariable + t.mark}), t.inJob(command)...)
	if err == nil {
		t.programs = append(t.programs, p)
	}
	return p, err
}

// startAll starts n programs of one kind.
func (t *Trial) startAll(n int, env []string, command ...string) error {
	for range n {
		if _, err := t.start(env, command...); err != nil {
			return err
		}
	}
	return nil
}

// native returns the command of a C program of the bundle.
func (t *Trial) native(name string, args ...string) []string {
	return append([]string{t.Bundle.file("bin", name)}, args...)
}

// script returns the command of a Python program of the bundle.
func (t *Trial) script(name string, args ...string) []string {
	return append([]string{t.Python, t.Bundle.file("python", name+".py")}, args...)
}

// compiled compiles a source file of the bundle, once, and returns the program.
func (t *Trial) compiled(name, compiler string, args ...string) (string, error) {
	out := filepath.Join(t.scratch, name)
	if _, err := exec.LookPath(out); err == nil {
		return out, nil
	}
	source := t.Bundle.file("src", name+".cu")
	text, err := exec.Command(compiler, append(args, "-o", out, source)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building %s: %w: %s", source, err, text)
	}
	return out, nil
}

// each calls a function for every program of the trial.
func (t *Trial) each(do func(*Program) error) error {
	for _, p := range t.programs {
		if err := do(p); err != nil {
			return err
		}
	}
	return nil
}

// tellAll tells every program a command.
func (t *Trial) tellAll(format string, args ...any) {
	for _, p := range t.programs {
		p.Tell(format, args...)
	}
}

// waitAt waits until all programs are at a step.
func (t *Trial) waitAt(name string) error {
	return t.each(func(p *Program) error { _, err := p.At(name); return err })
}

// nextStep lets all programs leave their step, and waits until they are at the next.
func (t *Trial) nextStep(name string) error {
	t.tellAll("")
	return t.waitAt(name)
}

// eachStep goes through all steps of programs that have the same steps, until the
// programs have ended. It calls at while all programs are at one step.
func (t *Trial) eachStep(at func([]Step) error) error {
	for {
		var steps []Step
		ended := 0
		err := t.each(func(p *Program) error {
			step, err := p.Step()
			if errors.Is(err, io.EOF) {
				ended++
				return nil
			}
			steps = append(steps, step)
			if err == nil && step.Name != steps[0].Name {
				err = fmt.Errorf("pid %d is at %s, another is at %s", p.PID(), step.Name, steps[0].Name)
			}
			return err
		})
		if err != nil || ended == len(t.programs) {
			return err
		}
		if ended > 0 {
			return fmt.Errorf("%d of %d have ended before the others", ended, len(t.programs))
		}
		if err := at(steps); err != nil {
			return err
		}
		t.tellAll("")
	}
}

// finish lets all programs leave their last step and end, and checks that nothing
// is left of them.
func (t *Trial) finish() error {
	if err := t.each((*Program).Finish); err != nil {
		return err
	}
	return t.checkNothingLeft()
}
