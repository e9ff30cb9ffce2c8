package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// runTeller is an agent that logs to its output, and kills itself before its n-th step of telling and
// remembering. It leaves reaping to the test.
func runTeller(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if n < 0 {
		n, minJournal = -n, 0
	}
	atStep = func(string) {
		if n--; n == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // it is delivered to any thread, a moment later
		}
	}
	a, err := New(Options{Folder: job.Folder(), Log: slog.New(slog.NewJSONHandler(os.Stdout, nil)), Interval: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	return a.Run(context.Background(), nil)
}

// toldOf is what a line of the log tells of. Of a job of the test one process dies.
type toldOf struct{ Event, Job string }

// Agents are killed before every step of telling and remembering, and at no particular moment, while
// jobs start, are refused memory, lose processes and end. Each start and each death is in the log, and
// each end of a job whose start was remembered while it ran; and for each agent that was killed there
// is at most one line that another has written, too (PROTOCOL.md).
func TestKilledLogging(t *testing.T) {
	folder := testFolder(t)
	want, got := map[toldOf]bool{}, map[toldOf]int{}
	var running []string
	processes := map[string]*child{}
	doubles, killed := 0, 0
	happen := func(round int) {
		name := "job" + strconv.Itoa(round)
		processes[name] = holder(t, name)
		running = append(running, name)
		want[toldOf{Event: machine.JobStarted, Job: name}] = true
		if len(running) < 3 {
			return
		}
		name, running = running[0], running[1:]
		path := filepath.Join(folder, name, job.RegionName)
		if ranJobOf(t, folder, path) {
			want[toldOf{Event: machine.JobEnded, Job: name}] = true
		}
		processes[name].kill()
		expect.OK(t, inProcess(context.Background(), []string{path}, os.Geteuid()))
		want[toldOf{Event: machine.ProcessDied, Job: name}] = true
	}
	whole := func() bool {
		for line := range want {
			if got[line] == 0 {
				return false
			}
		}
		return true
	}
	// tell runs an agent until it has killed itself, has told all there is, or wrote so many lines.
	tell := func(step, most int, beside func()) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envTell+"="+strconv.Itoa(step))
		out, err := cmd.StdoutPipe()
		expect.OK(t, err)
		expect.OK(t, cmd.Start())
		stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer stuck.Stop()
		beside()
		lines := bufio.NewScanner(out)
		read := func() bool {
			var line toldOf
			if !lines.Scan() {
				return false
			}
			err := json.Unmarshal(lines.Bytes(), &line)
			expect.Must(t, err == nil && line.Event != "", "the log has", lines.Bytes(), err)
			if got[line]++; got[line] > 1 {
				doubles++
			}
			return true
		}
		for n := 0; n < most && !whole() && read(); n++ {
		}
		_ = cmd.Process.Kill()
		for read() { // what it wrote before that
		}
		_ = cmd.Wait()
		killed++
		expect.Must(t, stuck.Stop(), "an agent did not tell all", got, "of", want)
	}
	const forEver = 1 << 30
	round := 0
	next := func(step, most int, beside bool) {
		happen(round)
		round++
		tell(step, most, func() {
			if beside {
				happen(round)
				round++
			}
		})
		// A reader shows the latest 16 jobs that have ended: no more may be left untold.
		if round%4 == 0 {
			tell(forEver, forEver, func() {})
		}
	}
	for step := 1; step <= 9; step++ {
		next(step, forEver, false)
		next(-step, forEver, false)
	}
	for i := range *kills {
		next(forEver, i%4, true)
		next(-forEver, i%4, true)
	}
	tell(forEver, forEver, func() {})
	expect.True(t, whole(), "lines are missing: want", want, got)
	t.Logf("%d lines, %d of them written again, by %d agents", len(got), doubles, killed)
	expect.True(t, doubles <= killed, doubles, "lines were written again, and", killed, "agents were killed")
	// One that was not killed leaves nothing to tell.
	t.Run("last", func(t *testing.T) { startAgent(t, Options{}) })
	after := startAgent(t, Options{})
	for kind, n := range after.Stats().Events {
		expect.True(t, n <= 0, "an agent that comes after all tells of", n, "more", kind)
	}
}

// ranJobOf reports whether it is remembered that a job ran.
func ranJobOf(t *testing.T, folder, path string) bool {
	t.Helper()
	list := reopen(t, folder)
	defer list.close()
	for _, l := range list.entries {
		if l.Ran != nil && l.Ran.Path == path {
			return true
		}
	}
	return false
}
