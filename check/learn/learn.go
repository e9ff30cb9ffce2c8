// Package learn teaches ration to a newcomer in a few minutes, on a stand-in GPU: three
// tasks that the newcomer does himself, at a prompt that runs what is typed and looks at the
// jobs to see whether the task is done. Without a terminal it does them itself, and prints
// what a newcomer would have seen.
package learn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"ration/check/harness"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/reap"
	"ration/machine"
)

// ErrLeft is returned when the newcomer left before the end.
var ErrLeft = errors.New("left before the end")

// Screen is where the lesson is shown.
type Screen struct {
	In   *os.File // a terminal to type on; nil: the lesson does the tasks itself
	Out  io.Writer
	File *os.File // what Out writes to, for the commands
	Bar  func(share float64, width int) string
	Bold func(string) string
	Dim  func(string) string
	Wrap func(text string, indent int) string
}

const (
	// askWithin is how long a task may take to be done after its command has started: a
	// program in the background needs a moment for its context.
	askWithin = 30 * time.Second
	// lookWithin is how long a job may take to appear after a command in the background, at a
	// prompt, where the newcomer can look again.
	lookWithin = 5 * time.Second
	lookEvery  = 20 * time.Millisecond
)

// lesson is a lesson in progress.
type lesson struct {
	Screen
	shell *shell
	lines *bufio.Reader // what is typed; nil where nobody types

	// What the newcomer has made in a task, for the next ones.
	name   string // of his job
	limit  uint64 // of it, after the first task
	answer string // what he typed, if that was a number
}

// Run gives the three tasks. ration is the path of this program. The folder of the jobs, and
// all processes in them, are gone when it returns.
func Run(ration string, screen Screen) error {
	region, remove, err := job.Scratch()
	if err != nil {
		return err
	}
	defer remove()
	if err := harness.Adopt(); err != nil {
		return err
	}
	defer harness.KillDescendants()
	folder := filepath.Dir(region)
	l := &lesson{Screen: screen}
	if l.shell, err = newShell(folder, ration, screen); err != nil {
		return err
	}
	if err := os.Setenv(job.EnvFolder, l.shell.jobs); err != nil { // this program looks there, too
		return err
	}
	if screen.In != nil {
		l.lines = bufio.NewReader(screen.In)
		l.say("Now you. What you type is run by a shell, on a stand-in GPU that only this lesson has.\n" +
			"Also understood: hint (shows a command that does it), skip (does it for you), quit.")
	} else {
		l.say("The three tasks, and what does them. On a terminal you would type these yourself.")
	}
	for i, t := range tasks {
		fmt.Fprintf(l.Out, "\n%s\n", l.Bold(fmt.Sprintf("Task %d of %d: %s", i+1, len(tasks), t.title)))
		l.say("%s", t.text(l))
		do := l.perform
		if l.lines != nil {
			do = l.prompt
		}
		if err := do(t); err != nil {
			return err
		}
	}
	return nil
}

func (l *lesson) say(format string, args ...any) {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		if !strings.HasPrefix(line, " ") { // a command is to be copied
			line = l.Wrap(line, 0)
		}
		fmt.Fprintln(l.Out, line)
	}
}

// prompt has the newcomer do a task.
func (l *lesson) prompt(t task) error {
	for {
		fmt.Fprint(l.Out, l.Bold("learn> "))
		line, err := l.lines.ReadString('\n')
		if err != nil {
			fmt.Fprintln(l.Out)
			return ErrLeft
		}
		l.answer = ""
		within := time.Duration(0)
		switch line = strings.TrimSpace(line); {
		case line == "": // look again
		case line == "hint" || line == "help" || line == "?":
			for _, command := range t.commands(l) {
				l.say("%s", command)
			}
			continue
		case line == "skip":
			return l.perform(t)
		case line == "quit" || line == "exit":
			return ErrLeft
		case number().MatchString(line):
			l.answer = line
		default:
			if strings.HasSuffix(line, "&") {
				within = lookWithin
			}
			if err := l.shell.run(line); err != nil {
				l.say("%s", l.Dim(err.Error()))
			}
		}
		if done := l.waitUntil(t, within); done != "" {
			l.finish(done)
			return nil
		}
		l.show()
		if text := t.missing(l); text != "" {
			l.say("%s", text)
		}
	}
}

var number = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9]+$`)
})

// perform does a task for the newcomer.
func (l *lesson) perform(t task) error {
	for _, command := range t.commands(l) {
		fmt.Fprintf(l.Out, "$ %s\n", command)
		if err := l.shell.run(command); err != nil && !errors.Is(err, errStatus) {
			return err
		}
	}
	if l.answer == "" && t.answer != nil {
		l.answer = t.answer(l)
	}
	done := l.waitUntil(t, askWithin)
	if done == "" {
		return fmt.Errorf("%s: not done by its own command (is the machine very slow?)", t.title)
	}
	l.finish(done)
	return nil
}

// waitUntil looks until a task is done, and returns what to say about it; "" if it is not.
func (l *lesson) waitUntil(t task, within time.Duration) string {
	for began := time.Now(); ; time.Sleep(lookEvery) {
		if done := t.done(l); done != "" {
			return done
		}
		took := time.Since(began)
		if took > within && (within == 0 || took > askWithin || t.coming == nil || !t.coming(l)) {
			return ""
		}
	}
}

func (l *lesson) finish(done string) {
	l.settle()
	l.show()
	l.say("%s %s", l.Bold("Done."), done)
}

// settle waits until the jobs' programs sleep, a moment at most, so that what they have to say
// does not come after the prompt. It is for the eye only.
func (l *lesson) settle() {
	for range 25 {
		busy := false
		for _, j := range l.jobs() {
			for _, p := range j.Processes {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.HostPID))
				_, state, found := strings.Cut(string(stat), ") ")
				busy = busy || err == nil && found && !strings.HasPrefix(state, "S")
			}
		}
		if !busy {
			return
		}
		time.Sleep(lookEvery)
	}
}

// show draws a bar for each job that runs.
func (l *lesson) show() {
	for _, j := range l.jobs() {
		d := firstDevice(j)
		if d == nil || j.State != machine.Running {
			continue
		}
		share, of := 0.0, "no limit"
		if d.Limited && d.Limit > 0 {
			share, of = float64(d.Used)/float64(d.Limit), humanfmt.Bytes(d.Limit)
		}
		fmt.Fprintf(l.Out, "  %s  %s %s of %s\n", j.Title(), l.Bar(share, 30), humanfmt.Bytes(d.Used), of)
	}
}

// jobs returns the lesson's jobs.
func (l *lesson) jobs() (out []machine.Job) {
	all, err := job.List()
	if err != nil {
		return nil // there is no folder yet
	}
	for _, j := range all {
		out = append(out, reap.ReadJob(j, reap.Options{}))
	}
	return out
}

// mine returns the newcomer's job, or nil.
func (l *lesson) mine() *machine.Job {
	for _, j := range l.jobs() {
		if j.Name == l.name && j.Err() == nil {
			return &j
		}
	}
	return nil
}

func firstDevice(j machine.Job) *machine.Device {
	for i := range j.Devices {
		if j.Devices[i].Device == 0 {
			return &j.Devices[i]
		}
	}
	return nil
}

// data returns what a job's processes hold of the first device beside their contexts.
func data(j machine.Job) (bytes uint64) {
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if h.Device == 0 {
				bytes += h.Data
			}
		}
	}
	return bytes
}

// topHolder returns the PID of the process that held most at the latest refusal, as text.
func topHolder(j *machine.Job) string {
	if j == nil || len(j.Refusals) == 0 || len(j.Refusals[0].Top) == 0 {
		return ""
	}
	return strconv.Itoa(j.Refusals[0].Top[0].PID)
}
