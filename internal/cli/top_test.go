package cli

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/harness/cuda"
	"ration/check/testenv"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/machine"
)

var record = flag.String("record", "", "write what `ration top` shows to this file")

// environ returns the environment of a user at a terminal, with settings of its own.
func environ(folder string, more ...string) []string {
	return append([]string{"RATION_DIR=" + folder, "CUDA_DEVICE_MEMORY_SHARED_CACHE=", "TERM=xterm-256color",
		"LC_ALL=C.UTF-8", "NO_COLOR=", "XDG_CONFIG_HOME=" + filepath.Join(filepath.Dir(folder), "config")}, more...)
}

// TestTop has real processes, a real region and the real program on a pseudo-terminal.
func TestTop(t *testing.T) {
	testenv.NeedsHost(t)
	folder := jobsFolder(t)
	workers := startJob(t, folder, "train",
		[]string{"10g", "518m", "2900m", "rank-0"},
		[]string{"10g", "518m", "2100m", "rank-1"},
		[]string{"10g", "518m", "1400m", "rank-2", "2g", "-2g"},
		[]string{"10g", "518m", "300m", "eval", "3g", "3g"})
	startJob(t, folder, "serve", []string{"4g", "518m", "1g", "server"})
	kill(t, startJob(t, folder, "gone", []string{"4g", "518m", "1g", "old"})[0])

	// It opens on everything that runs, the busiest first.
	s := onTerminal(t, 80, 24, environ(folder), "ration", "top", "--interval", "100ms")
	s.shows(`2 jobs, 5 processes, 10\.1 GiB held, 1 ended`)
	s.shows(`(?m)^▸ train +0 +█.*┃ +8\.57G +10G +86%.*\n  serve +0 +█.*┃ +1\.51G +4G +38%`)
	s.shows(`(?s)processes of all jobs, by mem.* rank-0 .* rank-1 .* rank-2 .* server .* eval `)
	s.shows(`train: eval \(\d+\) asked for 3 GiB ×2 with 1\.43 GiB free of 10\s+GiB;`)
	s.press("e")
	s.shows(`(?m)^  gone +ended`)
	s.press("e/SERV")
	s.waitUntil("only what matches", func(text string) bool {
		return strings.Contains(text, "filter SERV") && !strings.Contains(text, "rank-0")
	})
	s.press("\x1b")
	s.shows(`filter: SERV|rank-0`)
	s.shows(` rank-0 .*\n`)

	// Details, with a history, and a limit.
	s.press("\x1b[B\x1b[A\r")
	s.shows(`(?s)job train .*state +running.*8\.57 GiB of 10 GiB \(86 %\).*memory +▇+ to 10 GiB.*eval \(\d+\) asked for 3 GiB ×2`)
	s.press("l20 pounds\r")
	s.shows(`20 pounds`)
	s.shows(`limit: 20 pounds█`)
	s.press("\x15" + "20g\r") // ctrl+u
	s.shows(`train, device 0: the limit is 20 GiB now; it was 10 GiB\.`)
	s.shows(`8\.57 GiB of 20 GiB`)

	// A signal, after a question that names the process.
	s.press("k")
	s.shows(`Send SIGTERM to rank-0 \(pid ` + strconv.Itoa(workers[0].Process.Pid) + `\) of user `)
	s.press("n")
	s.waitUntil("no question", func(text string) bool { return !strings.Contains(text, "Send SIG") })
	s.press("k\x1b[C\x1b[C") // right
	s.shows(`Send SIGKILL to rank-0`)
	s.press("y")
	s.shows(`SIGKILL was sent to rank-0`)
	err := workers[0].Wait()
	expect.True(t, err != nil && strings.Contains(err.Error(), "killed"), "rank-0 ended with", err)
	s.shows(`5\.23 GiB of 20 GiB`)
	s.waitUntil("no death", func(text string) bool { return !strings.Contains(text, "died") })
	s.press("\x1b")
	s.shows(`(?m)^▸ train .* 5\.23G +20G`)

	// Keys, the mouse, and sizes of the terminal.
	s.press(" ")
	s.shows(`paused at`)
	s.press(" ")
	s.waitUntil("resumed", func(text string) bool { return !strings.Contains(text, "paused") })
	s.press("?")
	s.shows(`any other key back`)
	s.press("x")
	s.shows(`refusals and deaths`)
	s.resize(120, 40)
	s.shows(`OF LIMIT`)
	s.resize(40, 10)
	s.shows(`▸ train`)
	s.press("\t")
	s.shows(`▸ +\d+ .*rank-1`)
	s.resize(80, 24)
	s.press("\x1b[<0;4;4M\x1b[<0;4;4m") // a click on the second job
	s.shows(`▸ serve`)
	s.press("ss")
	s.shows(`sort: name`)
	s.press("q")
	s.exits(0)

	// The order is as it was left; the cursor is not.
	s = onTerminal(t, 80, 24, environ(folder), "ration", "top", "--interval", "100ms")
	s.shows(`(?s)JOB▲.*▸ serve.*train.*sort: name`)
	s.press("q")
	s.exits(0)
}

// TestTopMachine has real CUDA programs on a stand-in for two GPUs: one of them is in no job. It
// is the picture in README.md.
func TestTopMachine(t *testing.T) {
	testenv.NeedsHost(t)
	testenv.Made(t, cuda.Built())
	jobs := jobsFolder(t)
	env := append(environ(jobs, "FAKEGPU_QUIET=1"), machineEnviron(t, filepath.Dir(jobs))...)
	startUntil(t, "holding", env, "ration", "run", "--mem", "20g", "--name", "train", "--", "fake-train", "--hold", "12g", "10g")
	startUntil(t, "holding", env, "ration", "run", "--mem", "90g", "--name", "serve", "--", "fake-train", "--hold", "30g")
	outside := startUntil(t, "holding", env, "fake-train", "--hold", "5g").Process.Pid

	s := onTerminal(t, 80, 24, env, "ration", "top", "--interval", "100ms")
	s.shows(`(?m)^! fake-train \(pid ` + strconv.Itoa(outside) + `\) of user \S+ holds 5\.51 GiB of device 0, and`)
	s.shows(`(?m)^ +0 .*█.*G +140G +110G +5\.51G +0% +35°C +75W`)
	s.shows(`(?m)^ +1 .*M +140G +110G +0 +0% +35°C +75W`)
	s.shows(`(?s)▸ serve +0 .*30\.5G +90G.* train +0 .*12\.5G +20G`)
	s.shows(`train, device 0: fake-train \(\d+\) asked for 10 GiB with 7\.49 GiB\s+free\s+of\s+20\s+GiB`)
	if *record != "" {
		time.Sleep(5 * time.Second) // so that the ages in the picture are not 0
		expect.OK(t, os.WriteFile(*record, []byte(s.text()), 0o644))
	}
	s.press("f")
	s.shows(`\(start\s+it\s+with\s+ration\s+run, so`)
	s.press("qu")
	s.shows(`all users +2 +2 +43G +220G +5\.51G`)
	s.press("q/IN NO JOB\r\t")
	s.shows(`No job has "IN NO JOB" in its name`)
	s.shows(`▸ +` + strconv.Itoa(outside) + ` .* in no job +fake-train`)
	s.press("k")
	s.shows(`Send SIGTERM to fake-train \(pid ` + strconv.Itoa(outside) + `\)`)
	s.press("y")
	s.waitUntil("gone", func(text string) bool {
		return !strings.Contains(text, "in no job") && !strings.Contains(text, "! fake-train")
	})
	s.press("q")
	s.exits(0)
}

// A process that has taken the place of the one that is shown is not opened for a signal.
func TestTopProcess(t *testing.T) {
	testenv.NeedsHost(t)
	folder := jobsFolder(t)
	t.Setenv("RATION_DIR", folder)
	worker := startJob(t, folder, "train", []string{"10g", "518m", "1g", "rank-0"})[0]
	j, err := machine.ReadJob("train")
	expect.Must(t, err == nil && len(j.Processes) == 1, "read", j.Processes, err)
	id := j.Processes[0].Local
	found, err := topActions{}.Process(id, j.Path)
	expect.Must(t, err == nil && found.PID == worker.Process.Pid && found.Name == "rank-0", "found", found, err)
	for name, other := range map[string]machine.ProcessID{
		"another process": {PID: os.Getpid(), Start: id.Start}, "a later process": {PID: id.PID, Start: id.Start - 1}, "none": {PID: 1 << 22, Start: id.Start}, "unknown": {PID: id.PID},
	} {
		got, err := (topActions{}).Process(other, j.Path)
		expect.True(t, err != nil, name, "found", got)
	}
	// A handle stays with its process.
	kill(t, worker)
	err = found.Handle.Signal(unix.SIGCONT)
	expect.True(t, errors.Is(err, proc.ErrEnded), "signal to a process that has ended", err)
	got, err := (topActions{}).Process(id, j.Path)
	expect.True(t, err != nil, "found", got, "which has ended")
	expect.Equal(t, found.Handle.Close(), nil)
}

// The end of a process that ration top told to end is no death. One that got another signal has died.
func TestTopProcessTold(t *testing.T) {
	testenv.NeedsHost(t)
	folder := jobsFolder(t)
	t.Setenv("RATION_DIR", folder)
	workers := startJob(t, folder, "train", []string{"10g", "518m", "1g", "told"}, []string{"10g", "518m", "1g", "other"})
	j := mustReadJob(t, "train")
	for i, signal := range []unix.Signal{unix.SIGKILL, unix.SIGCONT} {
		start, err := proc.Started(workers[i].Process.Pid)
		expect.OK(t, err)
		found, err := topActions{}.Process(machine.ProcessID{PID: workers[i].Process.Pid, Start: start}, j.Path)
		expect.OK(t, err)
		expect.OK(t, errors.Join(found.Handle.Signal(signal), found.Handle.Close()))
		kill(t, workers[i])
	}
	r, err := region.Open(j.Path, region.Options{NoCreate: true})
	expect.OK(t, err)
	defer r.Close()
	_, err = r.Reap()
	expect.OK(t, err)
	deaths, err := r.Deaths()
	expect.Must(t, err == nil && len(deaths) == 1, deaths, err)
	expect.Equal(t, deaths[0].Name, "other")
}

// x ends all processes of a job, and of no later job with its name.
func TestTopStop(t *testing.T) {
	testenv.NeedsHost(t)
	folder := jobsFolder(t)
	t.Setenv("RATION_DIR", folder)
	workers := startJob(t, folder, "train", []string{"10g", "518m", "1g", "rank-0"}, []string{"10g", "518m", "1g", "rank-1"})
	others := startJob(t, folder, "serve", []string{"10g", "518m", "1g", "server"})
	j, err := machine.ReadJob("train")
	expect.OK(t, err)
	earlier := j
	earlier.Created = j.Created.Add(-time.Second)
	_, err = topActions{}.Stop(earlier)
	expect.True(t, err != nil && strings.Contains(err.Error(), "another job"), err)

	s := onTerminal(t, 80, 24, environ(folder), "ration", "top", "--interval", "100ms", "--filter", "name=tr*")
	s.shows(`1 job, filter name=tr\*`)
	s.press("x")
	s.shows(`End job train of user \S+\? SIGTERM to all its processes \(2 processes on\s+GPUs\)`)
	s.press("y")
	s.shows(`train: 2 processes got a signal`)
	for _, w := range workers {
		err := w.Wait()
		expect.True(t, err != nil && strings.Contains(err.Error(), "terminated"), err)
	}
	s.press("q")
	s.exits(0)
	said, err := topActions{}.Stop(mustReadJob(t, "serve"))
	expect.True(t, err == nil && said == "serve: 1 process got a signal", said, err)
	_ = others[0].Wait()
}

func mustReadJob(t *testing.T, name string) machine.Job {
	t.Helper()
	j, err := machine.ReadJob(name)
	expect.OK(t, err)
	return j
}

// What ration limit takes, the prompt takes, and what it refuses is an error.
func TestTopSetLimit(t *testing.T) {
	folder := jobsFolder(t)
	t.Setenv("RATION_DIR", folder)
	startJob(t, folder, "train", []string{"10g", "518m", "1g", "rank-0"})
	j := machine.Job{Name: "train", Path: filepath.Join(folder, "train", "region")}
	for _, tt := range []struct{ arguments, says, err string }{
		{"20g", "the limit is 20 GiB now; it was 10 GiB", ""},
		{" 0=5g ", "the limit is 5 GiB now; it was 20 GiB", ""},
		{"6g --device 0", "the limit is 6 GiB now", ""},
		{"--compute 50%", "the share of its time is 50 % now", ""},
		{"many", "", "many"},
		{"1g 2g", "", "a second size"},
		{"--help", "", "not a limit"},
		{"--nonsense", "", "nonsense"},
	} {
		says, err := topActions{}.SetLimit(j, tt.arguments)
		expect.True(t, strings.Contains(says, tt.says) && (err == nil) == (tt.err == "") && (err == nil || strings.Contains(err.Error(), tt.err)),
			tt.arguments, "says", says, err)
	}
	// Advice names another user's job by the user, too.
	r, err := region.Open(j.Path, region.Options{NoCreate: true})
	expect.OK(t, err)
	expect.OK(t, errors.Join(r.NameDevice(0, [2]uint64{1, 1}, 80<<30), r.Close()))
	t.Setenv("RATION_DIR", t.TempDir())
	j.Owner = "anna"
	change, err := limit.ParseLimits("memory=5=1g")
	expect.OK(t, err)
	_, err = applyLimits(j, change)
	expect.True(t, err != nil && strings.Contains(err.Error(), "no such device (ration ps anna/train "), err)
}

// TestTopEnds checks the exit status and the terminal after each way to end.
func TestTopEnds(t *testing.T) {
	folder := t.TempDir()
	for name, c := range map[string]struct {
		end    func(*screen)
		status int
	}{
		"interrupt key": {func(s *screen) { s.press("\x03") }, 0}, // TestTop ends it by q
		"SIGTERM":       {func(s *screen) { expect.OK(t, s.cmd.Process.Signal(unix.SIGTERM)) }, ExitSignal + int(unix.SIGTERM)},
	} {
		t.Run(name, func(t *testing.T) {
			s := onTerminal(t, 80, 24, environ(folder), "ration", "top")
			s.shows("There are no jobs in")
			c.end(s)
			s.exits(c.status)
		})
	}
}

// TestTopTerminals has terminals with fewer features.
func TestTopTerminals(t *testing.T) {
	folder := t.TempDir()
	startJob(t, folder, "train", []string{"10g", "0", "5g", "rank-0"})
	for _, term := range []string{"xterm", "screen", "tmux-256color", "vt100", "linux"} {
		t.Run(term, func(t *testing.T) {
			more := []string{"TERM=" + term, "SSH_TTY=/dev/pts/0", "NO_COLOR=1", "XDG_CONFIG_HOME=" + t.TempDir()}
			bar := "▸ train +0 +█"
			if term == "linux" {
				bar = "> train +0 +#"
			}
			if term == "vt100" {
				more, bar = append(more, "LC_ALL=C"), "> train +0 +#"
			}
			s := onTerminal(t, 80, 24, environ(folder, more...), "ration", "top", "--read-only")
			s.shows(bar)
			s.press("\tss")
			s.shows("by cpu")
			s.press("q")
			s.exits(0)
		})
	}
	t.Run("dumb", func(t *testing.T) {
		s := onTerminal(t, 80, 24, environ(folder, "TERM=dumb"), "ration", "top")
		s.shows(`ration: the terminal cannot move its cursor: TERM is dumb \(use ration ps --watch`)
	})
}

func TestWatchOnTerminal(t *testing.T) {
	folder := t.TempDir()
	startJob(t, folder, "train", []string{"10g", "0", "5g", "rank-0"})
	s := onTerminal(t, 80, 24, environ(folder), "ration", "ps", "--watch", "--interval", "100ms", "--count", "3")
	s.shows(`train  running .* 5G +10G +1`)
	expect.Equal(t, <-s.ended, nil)
	expect.Equal(t, strings.Count(s.text(), "train"), 1, "drawn", s.text())
}
