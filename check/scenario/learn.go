package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ration/check/harness"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/machine"
)

// ErrLeft is returned when the newcomer left before the end.
var ErrLeft = errors.New("left before the end")

const (
	// A background program needs a moment to create its context. This is how long the lesson waits
	// after its own command; at a prompt the newcomer can check again with Enter.
	performWithin = 30 * time.Second
	promptWithin  = 10 * time.Second
	lookEvery     = 20 * time.Millisecond
	// printWithin is how long to wait for the output of background programs, so that it does not
	// come after the prompt.
	printWithin = 100 * time.Millisecond
)

// lesson is a lesson in progress.
type lesson struct {
	Screen
	shell *shell
	lines *bufio.Reader // what is typed; nil where the lesson does the tasks itself

	// The newcomer's job, for the later tasks.
	name   string
	limit  uint64 // after the first task
	answer string // the latest number that was typed
}

// Learn gives a newcomer three tasks, and reads the jobs to see whether they are done. ration is
// the path of this program. When it returns, the folder of the jobs and all processes in them are
// removed.
func Learn(ration string, screen Screen) error {
	region, remove, err := job.Scratch()
	if err != nil {
		return err
	}
	defer remove()
	if err := harness.Adopt(); err != nil {
		return err
	}
	defer harness.KillDescendants()
	l := &lesson{Screen: screen}
	if l.shell, err = newShell(filepath.Dir(region), ration, screen); err != nil {
		return err
	}
	if err := os.Setenv(job.EnvFolder, l.shell.jobs); err != nil { // this program uses that folder too
		return err
	}
	do := l.perform
	if screen.In != nil {
		do, l.lines = l.prompt, bufio.NewReader(screen.In)
		l.say("Now you. What you type is run by a shell, on a stand-in GPU that only this lesson has.\n" +
			"Also understood: hint (shows a command that does it), skip (does it for you), quit.")
		if !l.shell.controlled {
			l.say("This terminal belongs to another session, as under su -c: Ctrl-C ends the lesson, not only a command. (su --pty avoids that.)")
		}
	} else {
		l.say("The three tasks, and what does them. On a terminal you would type these yourself.")
	}
	for i, t := range tasks {
		fmt.Fprintf(l.Out, "\n%s\n", l.Bold(fmt.Sprintf("Task %d of %d: %s", i+1, len(tasks), t.title)))
		l.say("%s\n", l.fill(t.text))
		for _, command := range t.commands {
			l.say("    %s", l.fill(command))
		}
		l.say("")
		if err := do(t); err != nil {
			return err
		}
	}
	return nil
}

// fill puts the job's name and limit into a text.
func (l *lesson) fill(text string) string {
	return strings.NewReplacer("{job}", l.name, "{limit}", humanfmt.Bytes(l.limit)).Replace(text)
}

func (l *lesson) say(format string, args ...any) {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		if !strings.HasPrefix(line, " ") { // a command is to be copied
			line = l.Wrap(line, 0)
		}
		fmt.Fprintln(l.Out, line)
	}
}

// prompt lets the newcomer do a task.
func (l *lesson) prompt(t task) error {
	for {
		fmt.Fprint(l.Out, l.Bold("learn> "))
		line, err := l.lines.ReadString('\n')
		if err != nil {
			fmt.Fprintln(l.Out)
			return ErrLeft
		}
		l.answer = ""
		timeout := time.Duration(0)
		switch line = strings.TrimSpace(line); line {
		case "": // check again
		case "hint", "help", "?":
			for _, command := range t.commands {
				l.say("%s", l.fill(command))
			}
			continue
		case "skip":
			return l.perform(t)
		case "quit", "exit":
			return ErrLeft
		default:
			if _, err := strconv.ParseUint(line, 10, 64); err == nil {
				l.answer = line
				break
			}
			if strings.HasSuffix(line, "&") {
				timeout = promptWithin
			}
			if err := l.shell.run(line); err != nil {
				l.say("%s", l.Dim(err.Error()))
			}
		}
		if l.waitUntilDone(t, timeout) {
			return nil
		}
		l.show()
		l.say("%s", t.missing(l))
	}
}

// perform does a task for the newcomer.
func (l *lesson) perform(t task) error {
	for _, command := range t.commands {
		command = l.fill(command)
		fmt.Fprintf(l.Out, "$ %s\n", command)
		if err := l.shell.run(command); err != nil && !errors.Is(err, errStatus) {
			return err
		}
	}
	l.answer = l.mine().topHolder()
	if !l.waitUntilDone(t, performWithin) {
		return fmt.Errorf("%s: not done by its own command (is the machine very slow?)", t.title)
	}
	return nil
}

// waitUntilDone checks until a task is done, and says so. It gives up after timeout.
func (l *lesson) waitUntilDone(t task, timeout time.Duration) bool {
	for began := time.Now(); ; time.Sleep(lookEvery) {
		if done := t.done(l); done != "" {
			time.Sleep(printWithin)
			l.show()
			l.say("%s %s", l.Bold("Done."), done)
			return true
		}
		if time.Since(began) > timeout {
			return false
		}
	}
}

// show draws a bar for each job that runs.
func (l *lesson) show() {
	for _, j := range l.jobs() {
		if j.State != machine.Running {
			continue
		}
		share, of := 0.0, "no limit"
		if j.device.Limited && j.device.Limit > 0 {
			share, of = float64(j.device.Used)/float64(j.device.Limit), humanfmt.Bytes(j.device.Limit)
		}
		fmt.Fprintf(l.Out, "  %s  %s %s of %s\n", j.Title(), l.Bar(share, 30), humanfmt.Bytes(j.device.Used), of)
	}
}

// lessonJob is a job with its use of the first device.
type lessonJob struct {
	machine.Job
	device machine.Device
	data   uint64 // bytes that its processes hold beside their contexts
}

// jobs returns the lesson's jobs that can be read.
func (l *lesson) jobs() (out []lessonJob) {
	all, err := job.List()
	if err != nil {
		return nil // there is no folder yet
	}
	for _, found := range all {
		j := lessonJob{Job: node.ReadJob(found, node.Options{})}
		if j.Err() != nil {
			continue
		}
		for _, d := range j.Devices {
			if d.Device == 0 {
				j.device = d
			}
		}
		for _, p := range j.Processes {
			for _, h := range p.Holdings {
				if h.Device == 0 {
					j.data += h.Data
				}
			}
		}
		out = append(out, j)
	}
	return out
}

// mine returns the newcomer's job; without a state if it was removed.
func (l *lesson) mine() lessonJob {
	for _, j := range l.jobs() {
		if j.Name == l.name {
			return j
		}
	}
	return lessonJob{}
}

// topHolder returns the PID of the process that held most at the latest refusal, as text.
func (j lessonJob) topHolder() string {
	if len(j.Refusals) == 0 || len(j.Refusals[0].Top) == 0 {
		return ""
	}
	return strconv.Itoa(j.Refusals[0].Top[0].PID)
}
