package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/harness/cuda"
	"ration/check/testenv"
)

// startLearn starts a lesson on a terminal, with a folder of its own for what it leaves.
func startLearn(t *testing.T, command ...string) (s *screen, folder string) {
	t.Helper()
	testenv.Made(t, cuda.Built())
	folder = t.TempDir()
	t.Cleanup(func() { // a lesson that a failed test killed could not clean up
		for _, left := range processesIn(folder) {
			if pid, err := strconv.Atoi(strings.Split(left, "/")[2]); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	environ := environ(filepath.Join(folder, "unused"), "TMPDIR="+folder, "RATION_LIB="+t.TempDir())
	return onTerminal(t, 100, 200, environ, command...), folder
}

// leftNothing checks how a lesson ended, and that it left nothing behind: no file, no process.
func (s *screen) leftNothing(status int, folder string) {
	s.t.Helper()
	s.ends(status)
	left, err := os.ReadDir(folder)
	expect.True(s.t, err == nil && len(left) == 0, "left", left, err)
	living := processesIn(folder)
	expect.Equal(s.t, len(living), 0, "processes go on", living)
	now, err := unix.IoctlGetTermios(int(s.line.Fd()), unix.TCGETS)
	expect.True(s.t, err == nil && *now == *s.first, "terminal left as", now, err, "it was", s.first)
}

// processesIn returns the processes that have a folder in their environment.
func processesIn(folder string) (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), folder) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
			found = append(found, path+" "+string(name))
		}
	}
	return found
}

// A newcomer does all three tasks, with mistakes.
func TestLearn(t *testing.T) {
	s, folder := startLearn(t, "ration", "learn", "--quick")
	s.shows(`greedy was refused`)
	s.shows(`Task 1 of 3: limit a job`)
	s.shows(`learn>\n$`)
	s.press("ration runn\n")
	s.shows(`did you mean run`)
	s.shows(`Not yet: there is no job that runs with a limit`)
	s.press("hint\n")
	s.shows(`learn> hint\nration run --fake-gpu h200 --mem 4g --name mine`)
	s.press("ration run --fake-gpu h200 --mem 5g --name first -- fake-train --hold 3g &\n")
	s.shows(`first +█+.* 3\.51 GiB of 5 GiB`)
	s.shows(`Done\. The job first has a limit of 5 GiB`)
	s.shows(`Task 2 of 3`)
	s.press("ration limit first 4g\n")
	s.shows(`Not yet: the limit is not higher`)
	s.press("ration limit first 8g\n")
	s.shows(`Done\. The limit is 8 GiB now`)
	s.shows(`Task 3 of 3`)
	s.press("17\n")
	s.shows(`Nothing was refused yet`)
	s.press("ration run --fake-gpu h200 -- fake-train --hold 1g\n")
	s.shows(`holding 1 GiB`)
	s.press("\x03")
	s.shows(`\^C\nit ended by signal 2 \(interrupt\)`)
	s.press("ration run --fake-gpu h200 --name first --join -- fake-train 6g\n")
	s.shows(`Now type the PID`)
	s.press("ration why first\n")
	text := s.shows(`most was\s+held by\s+fake-train \(pid \d+\)\s+3\.51 GiB`)
	pid := regexp.MustCompile(`held by\s+fake-train \(pid (\d+)\)\s+3\.51 GiB`).FindStringSubmatch(text)[1]
	s.press("1\n")
	s.shows(`That is not the process that held most`)
	s.press(pid + "\n")
	s.shows(`Done\. PID ` + pid + ` held most`)
	s.shows(`On your own GPU`)
	s.leftNothing(0, folder)
}

// Whatever ends a lesson, its processes and files go with it.
func TestLearnEnds(t *testing.T) {
	for name, c := range map[string]struct {
		how    func(*screen)
		status int
	}{
		"quit":        {func(s *screen) { s.press("quit\n"); s.shows("You left") }, 0},
		"end of file": {func(s *screen) { s.press("\x04"); s.shows("You left") }, 0},
		"interrupt":   {func(s *screen) { s.press("\x03") }, 130},
		"SIGTERM":     {func(s *screen) { _ = s.cmd.Process.Signal(unix.SIGTERM) }, 143},
		"SIGHUP":      {func(s *screen) { _ = s.cmd.Process.Signal(unix.SIGHUP) }, 129},
	} {
		t.Run(name, func(t *testing.T) {
			s, folder := startLearn(t, "ration", "learn", "--tasks")
			s.shows(`learn>\n$`)
			// skip does a task; its program goes on in the background.
			s.press("skip\n")
			s.shows(`Task 2 of 3(?s:.*)learn>`) // its program may say something after that
			expect.True(t, len(processesIn(folder)) >= 2, "no program in the background", processesIn(folder))
			c.how(s)
			s.leftNothing(c.status, folder)
		})
	}
}

// Ctrl-C ends a command that runs in the foreground, and not the lesson. Ctrl-Z does nothing
// to it: nothing could continue it.
func TestLearnInterruptsCommand(t *testing.T) {
	s, folder := startLearn(t, "ration", "learn", "--tasks")
	s.shows(`learn>\n$`)
	s.press("ration run --fake-gpu h200 --mem 4g --name long -- fake-train --hold 1g\n")
	s.shows(`holding 1 GiB`)
	s.press("\x1a")
	s.press("\x03")
	s.shows(`Not yet: there is no job that runs with a limit(?s:.*)learn>\n$`)
	s.press("quit\n")
	s.leftNothing(0, folder)
}

// Under su -c and setsid the terminal belongs to another session. The lesson works there too.
func TestLearnInOtherSession(t *testing.T) {
	s, folder := startLearn(t, "setsid", "--wait", "ration", "learn", "--tasks")
	s.shows(`This terminal belongs to another session(?s:.*)learn>\n$`)
	s.press("ration run --fake-gpu h200 --mem 4g --name first -- fake-train --hold 1g &\n")
	s.shows(`Task 2 of 3(?s:.*)learn>`)
	s.press("ration limit first 8g\n")
	s.shows(`Task 3 of 3(?s:.*)learn>`)
	s.press("skip\n")
	s.shows(`On your own GPU`)
	s.leftNothing(0, folder)
}

// There, Ctrl-C reaches only the program that made the session. The lesson ends with it.
func TestLearnEndsWithParent(t *testing.T) {
	s, folder := startLearn(t, "setsid", "--wait", "ration", "learn", "--tasks")
	s.shows(`learn>\n$`)
	s.press("ration run --fake-gpu h200 --mem 4g --name long -- fake-train --hold 1g\n")
	s.shows(`holding 1 GiB`)
	s.press("\x03")
	for deadline := time.Now().Add(time.Minute); len(processesIn(folder)) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	s.leftNothing(-1, folder) // setsid was killed by SIGINT
}
