package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/sleep"
)

// startStopped starts a command that stops at a step, and returns when it has.
func startStopped(t *testing.T, step string, args ...string) (cmd *exec.Cmd, said *strings.Builder) {
	t.Helper()
	cmd, said = exec.Command("ration", args...), &strings.Builder{}
	cmd.Env = append(os.Environ(), "RATION_TEST_DIE="+step+":stop")
	cmd.Stdout, cmd.Stderr = said, said
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	waitStopped(t, cmd.Process.Pid)
	return cmd, said
}

// stopsOrEnds returns true if a process stops, and false if it ends.
func stopsOrEnds(t *testing.T, cmd *exec.Cmd) bool {
	ended := make(chan bool)
	go func() { _ = cmd.Wait(); close(ended) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		select {
		case <-ended:
			return false
		default:
		}
		if stat, err := proc.ReadStat(cmd.Process.Pid); err == nil && stat.Stopped() {
			return true
		}
		expect.Must(t, time.Now().Before(end), "pid", cmd.Process.Pid, "neither stops nor ends")
	}
}

// ration wake is called while the job falls asleep. When it has the job, that sleeps, and its room is given to a command
// that waits. So the wake needs its turn.
func TestWakeWhileFallingTakesItsTurn(t *testing.T) {
	jobs := sleepMachine(t, "0")
	old := startSleeper(t, 3000, "--mem", "5g", "--name", "old")
	_, before := readSleeper(t, "old")
	falling, said := startStopped(t, "sleep-moved:1", "sleep", "--wake", "manual", "old")
	waking := exec.Command("ration", "wake", "old")
	waking.Env = append(os.Environ(), "RATION_TEST_DIE=wake-waking:1:stop")
	var woke strings.Builder
	waking.Stderr = &woke
	expect.OK(t, waking.Start())
	t.Cleanup(func() { _ = waking.Process.Kill() })
	waits := exec.Command("ration", "run", "--wait", "--mem", "5g", "--name", "young", "--", "sleep", "600")
	expect.OK(t, waits.Start())
	t.Cleanup(func() { _ = waits.Process.Kill(); _ = waits.Wait() })
	waitQueued(t, jobs, 1)
	time.Sleep(300 * time.Millisecond) // wake waits for the lock
	expect.OK(t, falling.Process.Signal(unix.SIGCONT))
	expect.OK(t, falling.Wait(), said.String())
	expect.Must(t, !stopsOrEnds(t, waking), "the job wakes while others wait for its room")
	expect.True(t, strings.Contains(woke.String(), "no room"), "wake says", woke.String())
	expect.OK(t, waits.Process.Kill())
	mustRation(t, "wake", "--wait", "old")
	awakeAndWhole(t, "old", before.Used, old)
}

// The process that waited to wake a job does not wake it from a later sleep that only ration wake may end.
func TestManualAfterAuto(t *testing.T) {
	slow(t)
	sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	mustRation(t, "sleep", "nb")
	mustRation(t, "wake", "nb")
	mustRation(t, "sleep", "--wake", "manual", "nb")
	p.tell("alloc 1048576")
	_, answered := p.answers(2 * time.Second)
	expect.Must(t, !answered, "a call woke a job of --wake manual")
	mustRation(t, "wake", "nb")
	_, answered = p.answers(time.Minute)
	expect.Must(t, answered, "the call does not go on")

	// The same if it sleeps already.
	mustRation(t, "sleep", "nb")
	mustRation(t, "sleep", "--wake", "manual", "nb")
	p.tell("free")
	_, answered = p.answers(2 * time.Second)
	expect.Must(t, !answered, "a call woke a job of --wake manual")
	mustRation(t, "sleep", "nb") // auto again, and a call waits
	_, answered = p.answers(time.Minute)
	expect.Must(t, answered, "the call does not go on")
}

// All processes of a job have ended while it slept. The next ones are served, also in a job that stays.
func TestStartsAfterEndAsleep(t *testing.T) {
	sleepMachine(t, "0")
	mustRation(t, "create", "--mem", "1g", "stays")
	t.Cleanup(func() { mustRation(t, "rm", "--force", "stays") })
	for _, args := range [][]string{{"--mem", "1g", "--name", "nb"}, {"--join", "--name", "stays"}} {
		for _, wake := range []string{"manual", "auto"} {
			p := startSleeper(t, 100, args...)
			name := args[len(args)-1]
			mustRation(t, "sleep", "--wake", wake, name)
			expect.OK(t, p.command.Process.Kill())
			_ = p.command.Wait()
			next := startSleeper(t, 100, args...)
			j, d := readSleeper(t, name)
			expect.True(t, j.Sleep == "" && d.Aside == 0, name, "is", j.Sleep, "with", d.Aside, "aside")
			next.does("quit")
			_ = next.command.Wait()
		}
	}
}

// Several commands put one job to sleep, wake it and change its limit at once, and are killed at random, while a process
// of the job works, and others join it and end.
func TestSleepCrowd(t *testing.T) {
	slow(t)
	sleepMachine(t, "4000:4000")
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	first := startSleeper(t, 200, "--mem", "4g", "--name", "crowd")
	_, before := readSleeper(t, "crowd")
	var group sync.WaitGroup
	until := time.Now().Add(6 * time.Second)
	for i := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(func() {
			for time.Now().Before(until) {
				args := [][]string{{"sleep", "crowd"}, {"sleep", "--wake", "manual", "crowd"}, {"wake", "crowd"}, {"wake", "--wait", "crowd"},
					{"limit", "crowd", "3g"}, {"run", "--join", "--name", "crowd", "--", "true"}}[random.IntN(6)]
				cmd := exec.Command("ration", args...)
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				killed := time.AfterFunc(time.Duration(random.IntN(1500))*time.Millisecond, func() { _ = cmd.Process.Kill() })
				_ = cmd.Wait() // refused, killed or done
				killed.Stop()
			}
		})
	}
	first.tell("churn 1 104857600 1048576 200")
	group.Wait()
	mustRation(t, "limit", "crowd", "4g")
	mustRation(t, "wake", "--wait=1m", "crowd")
	first.tell("info")
	for range 2 {
		text, answered := first.answers(time.Minute)
		expect.Must(t, answered && strings.HasPrefix(text, "ok"), "the program says", text)
	}
	first.does("freeall")
	first.does(fmt.Sprint("alloc ", 200<<20))
	awakeAndWhole(t, "crowd", before.Used, first)
}

// waiters returns the processes that wait to wake the job of a region, or those whose regions are in a folder.
func waiters(path string) (out []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), sleep.Waiter+"\x00"+path) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			out = append(out, pid)
		}
	}
	return out
}

// The process that waits to wake a job ends with it, also if it cannot reach the driver any more.
func TestWaiterEndsWithItsJob(t *testing.T) {
	slow(t)
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	driver := filepath.Join(t.TempDir(), "driver")
	expect.OK(t, os.Symlink(os.Getenv("LD_LIBRARY_PATH"), driver))
	out, err := rationOutput([]string{"LD_LIBRARY_PATH=" + driver}, "sleep", "nb")
	expect.OK(t, err, out)
	path := filepath.Join(jobs, "nb", job.RegionName)
	expect.Equal(t, len(waiters(path)), 1, "processes that wait to wake it")
	expect.OK(t, os.Remove(driver))
	expect.OK(t, p.command.Process.Kill())
	for end := time.Now().Add(time.Minute); len(waiters(path)) > 0; time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it waits for ever:", waiters(path))
	}
}
