package gputest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ration/check/expect"
	"ration/internal/humanfmt"
	"ration/internal/job"
)

// trial is a check or a measurement in progress: a job, the programs in it, and what was
// found so far. Its methods end the test if something is wrong.
type trial struct {
	testing.TB
	*testbed
	*findings
	job      job.Job   // without a name before open
	limit    uint64    // of the job, in bytes
	flags    []string  // of ration run, besides those of name and limit
	joined   []job.Job // all jobs of the trial that share the device
	env      []string
	mark     string // in the environment of all its processes: see markVariable
	programs []*program
	known    sync.Map // host PIDs of all processes that were ever in the region; the observer adds to it, too

	mostAtRest uint64 // the driver's highest count for the job in compare, in bytes
	managed    bool   // the programs use managed memory, which the driver lists for no process
	unlisted   uint64 // bytes of managed memory at this step
	poolSlack  uint64 // bytes of a refused request that a pool may keep until its program next waits for the device
}

// findings is what a check reports. The trials inside a trial add to the same findings.
type findings struct {
	why     string   // why it failed or was skipped
	notes   []string // the measured values, as text
	largest int64    // difference between ration's count and the driver's, in bytes
}

// newTrial makes a trial without a job.
func (b *testbed) newTrial(t testing.TB) *trial {
	b.trials++
	return &trial{TB: t, testbed: b, findings: &findings{}, mark: fmt.Sprintf("%s/%d.", b.scratch, b.trials)}
}

// inside runs a part of a trial as a trial of its own, whose programs end with it.
func (t *trial) inside(do func(*trial)) {
	inner := t.newTrial(t.TB)
	inner.findings, inner.flags, inner.env = t.findings, t.flags, t.env
	defer inner.close()
	do(inner)
}

// Fatalf ends the test, and keeps the reason for the report.
func (t *trial) Fatalf(format string, args ...any) {
	t.Helper()
	t.why = fmt.Sprintf(format, args...)
	t.TB.Fatal(t.summary())
}

// Skipf skips the test, and keeps the reason for the report.
func (t *trial) Skipf(format string, args ...any) {
	t.Helper()
	t.why = fmt.Sprintf(format, args...)
	t.TB.Skip(t.why)
}

// must ends the test if there is an error.
func (t *trial) must(err error) {
	t.Helper()
	expect.OK(t, err)
}

// note adds to the summary.
func (t *trial) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (f *findings) summary() string {
	if f.why == "" {
		return strings.Join(f.notes, "; ")
	}
	return strings.Join(append([]string{f.why}, f.notes...), "; ")
}

// noteDifference adds to the summary the largest difference between ration's count
// and the driver's.
func (t *trial) noteDifference() {
	sign := "+"
	if t.largest < 0 {
		sign = "-"
	}
	t.note("counts within %s%s", sign, humanfmt.Bytes(uint64(abs(t.largest))))
}

func abs(n int64) int64 { return max(n, -n) }

// short returns one value in a smoke run, and another in a full run.
func short[T any](t *trial, quick, full T) T {
	if testing.Short() || t.onStandIn() {
		return quick
	}
	return full
}

// open makes a job with a limit. Programs that are started from now on are in it.
func (t *trial) open(limit uint64) {
	t.jobs++
	name := fmt.Sprintf("test-%d", t.jobs)
	path, err := job.RegionPath(name)
	t.must(err)
	t.job, t.limit = job.Job{Name: name, Path: path}, limit
}

// inJob returns the command that starts another one in the job, or the other one
// itself if there is no job.
func (t *trial) inJob(command []string) []string {
	if t.job.Name == "" {
		return command
	}
	return slices.Concat([]string{t.file("ration"), "run", "--name", t.job.Name, "--join", "--mem", strconv.FormatUint(t.limit, 10)},
		t.flags, []string{"--"}, command)
}

// startAll starts n programs of one kind.
func (t *trial) startAll(n int, env []string, command ...string) {
	for range n {
		t.start(env, command...)
	}
}

// native returns the command of a C program of the bundle.
func (t *trial) native(name string, args ...string) []string {
	return append([]string{t.file("bin", name)}, args...)
}

// script returns the command of a Python program of the bundle.
func (t *trial) script(name string, args ...string) []string {
	return append([]string{python, t.file("python", name+".py")}, args...)
}

// compiled compiles a CUDA program of the bundle, once, and returns its path.
func (t *trial) compiled(name string) string {
	out, source := filepath.Join(t.scratch, name), t.file("src", name+".cu")
	if _, err := exec.LookPath(out); err == nil {
		return out
	}
	text, err := exec.Command(nvcc, "-O2", "-o", out, source).CombinedOutput()
	expect.OK(t, err, "building", source, text)
	return out
}

// tellAll tells every program a command.
func (t *trial) tellAll(format string, args ...any) {
	for _, p := range t.programs {
		p.Tell(format, args...)
	}
}

// waitAt waits until all programs are at a step.
func (t *trial) waitAt(name string) {
	for _, p := range t.programs {
		p.at(name)
	}
}

// eachStep goes through all steps of programs that have the same steps, until the
// programs have ended. It calls at while all programs are at one step.
func (t *trial) eachStep(at func([]step)) {
	for {
		var steps []step
		for _, p := range t.programs {
			if s, more := p.step(); more {
				steps = append(steps, s)
			}
		}
		if len(steps) == 0 {
			return
		}
		expect.Must(t, len(steps) >= len(t.programs), len(t.programs)-len(steps), "of", len(t.programs), "have ended before the others")
		for i, s := range steps {
			expect.Must(t, s.name == steps[0].name, "pid", t.programs[i].PID(), "is at", s.name, "another is at", steps[0].name)
		}
		at(steps)
		t.tellAll("")
	}
}

// finish lets all programs leave their last step and end, and checks that nothing
// is left of them.
func (t *trial) finish() {
	t.Helper()
	for _, p := range t.programs {
		p.finish()
	}
	t.checkNothingLeft()
}
