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

	"ration/internal/job"
)

// Stage is one check under way: a job, the programs in it, and what was seen.
type Stage struct {
	*Machine
	quick       bool
	job         job.Job
	limit       uint64
	environment []string // of all its programs
	mark        string   // of all its processes: markAs
	all         []*Program
	roll        roll
	seen        []string
	most        uint64 // the driver's count, of all readings at rest
	managed     bool   // memory is, which the driver lists for no process
	unlisted    uint64 // bytes of that
	undone      uint64 // what a pool may keep of a refused request until its program next waits for the device
	values      map[string]int64
}

// stage makes one.
func (m *Machine) stage(quick bool) *Stage {
	m.stages++
	return &Stage{Machine: m, quick: quick, mark: fmt.Sprintf("%s/%d.", m.scratch, m.stages), values: map[string]int64{}}
}

// see adds to what people read about the check.
func (s *Stage) see(format string, args ...any) {
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

func (s *Stage) figure() string { return strings.Join(s.seen, "; ") }

// said is the end of what each program said, of those that said something.
func (s *Stage) said() string {
	var out []string
	for _, p := range s.all {
		if text := p.tail.String(); text != "" {
			out = append(out, fmt.Sprintf("pid %d: %s", p.PID(), text))
		}
	}
	return strings.Join(out, "\n")
}

// open makes a job with a limit. Programs that are started from now on are in it.
func (s *Stage) open(limit uint64) error {
	s.jobs++
	name := fmt.Sprintf("test-%d", s.jobs)
	path, err := job.RegionPath(name)
	s.job, s.limit = job.Job{Name: name, Path: path}, limit
	return err
}

// run is the command that starts another in the job, or, where there is none, the
// other itself.
func (s *Stage) run(command []string) []string {
	if s.job.Name == "" {
		return command
	}
	return append([]string{s.Bundle.file("ration"), "run", "--name", s.job.Name, "--join", "--mem", strconv.FormatUint(s.limit, 10), "--"}, command...)
}

// start starts a program, in the job if there is one.
func (s *Stage) start(env []string, command ...string) (*Program, error) {
	p, err := s.Machine.start(slices.Concat(s.environment, env, []string{markAs + s.mark}), s.run(command)...)
	if err == nil {
		s.all = append(s.all, p)
	}
	return p, err
}

// startAll starts n of a kind.
func (s *Stage) startAll(n int, env []string, command ...string) error {
	for range n {
		if _, err := s.start(env, command...); err != nil {
			return err
		}
	}
	return nil
}

// native is a small program of the bundle's, script one of a framework's.
func (s *Stage) native(name string, args ...string) []string {
	return append([]string{s.Bundle.file("bin", name)}, args...)
}

func (s *Stage) script(name string, args ...string) []string {
	return append([]string{s.Python, s.Bundle.file("python", name+".py")}, args...)
}

// built is a program that is built here, once.
func (s *Stage) built(name, compiler string, args ...string) (string, error) {
	out := filepath.Join(s.scratch, name)
	if _, err := exec.LookPath(out); err == nil {
		return out, nil
	}
	source := s.Bundle.file("src", name+".cu")
	text, err := exec.Command(compiler, append(args, "-o", out, source)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building %s: %w: %s", source, err, text)
	}
	return out, nil
}

// each does something with every program of the stage.
func (s *Stage) each(do func(*Program) error) error {
	for _, p := range s.all {
		if err := do(p); err != nil {
			return err
		}
	}
	return nil
}

// meet waits until all are at a step.
func (s *Stage) meet(name string) error {
	return s.each(func(p *Program) error { _, err := p.At(name); return err })
}

// goOn lets all leave the step they are at, and meet at the next.
func (s *Stage) goOn(next string) error {
	if err := s.each((*Program).GoOn); err != nil {
		return err
	}
	return s.meet(next)
}

// lockstep goes through all steps of programs that are the same, calling at with all
// of them at each, until they have ended.
func (s *Stage) lockstep(at func([]Step) error) error {
	for {
		var steps []Step
		ended := 0
		err := s.each(func(p *Program) error {
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
		if err != nil || ended == len(s.all) {
			return err
		}
		if ended > 0 {
			return fmt.Errorf("%d of %d have ended before the others", ended, len(s.all))
		}
		if err := at(steps); err != nil {
			return err
		}
		if err := s.each((*Program).GoOn); err != nil {
			return err
		}
	}
}

// finish lets all leave their last step and end. Then nothing may be left, neither
// in the books nor with the driver.
func (s *Stage) finish() error {
	if err := s.each((*Program).Finish); err != nil {
		return err
	}
	return s.nothingLeft()
}
