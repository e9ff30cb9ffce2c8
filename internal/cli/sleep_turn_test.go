package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// startsInTime checks that a command which waits for room ends in time.
func startsInTime(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("ration", append(append([]string{"run", "--wait=1m"}, args...), "--", "true")...)
	out, err := cmd.CombinedOutput()
	expect.OK(t, err, string(out), mustRation(t, "queue"))
}

// Two processes wait to wake one job. After the first has woken it, the second leaves the queue: it does not wait for the
// room that the job itself has now.
func TestWokenByAnother(t *testing.T) {
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "5g", "--name", "woken")
	_, before := readSleeper(t, "woken")
	mustRation(t, "sleep", "woken")
	blocker := startSleeper(t, 100, "--mem", "5g", "--name", "blocker")
	p.tell("alloc 1048576") // the waiter enters the queue
	waitQueued(t, jobs, 1)
	second := exec.Command("ration", "wake", "--wait", "woken")
	expect.OK(t, second.Start())
	t.Cleanup(func() { _ = second.Process.Kill() })
	waitQueued(t, jobs, 2)
	blocker.does("quit")
	_, answered := p.answers(time.Minute)
	expect.Must(t, answered, "it does not wake")
	p.does("free")
	startsInTime(t, "--mem", "1g")
	expect.OK(t, second.Wait())
	awakeAndWhole(t, "woken", before.Used, p)
}

// A job that sleeps ends while it waits for room to wake. It leaves the queue.
func TestEndsWhileItWaitsToWake(t *testing.T) {
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "5g", "--name", "gone")
	mustRation(t, "sleep", "gone")
	startSleeper(t, 100, "--mem", "5g", "--name", "blocker")
	p.tell("alloc 1048576")
	waitQueued(t, jobs, 1)
	expect.OK(t, p.command.Process.Kill())
	_ = p.command.Wait()
	startsInTime(t, "--mem", "1g")
	waitQueued(t, jobs, 0)
}

// startWaiting starts a command that waits for room, and returns when it is the first in the queue and has found none.
func startWaiting(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("ration", append([]string{"run", "--wait=1m"}, args...)...)
	said, err := cmd.StderrPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "first in the queue") {
	}
	go func() {
		for lines.Scan() {
		}
	}()
	return cmd
}

// ration sleep is killed when the job sleeps, before it has told the queue.
func TestSleepKilledBeforeQueueKnows(t *testing.T) {
	sleepMachine(t, "0")
	startSleeper(t, 100, "--mem", "5g", "--name", "old")
	waits := startWaiting(t, "--mem", "5g", "--name", "young", "--", "true")
	_, err := rationOutput([]string{"RATION_TEST_DIE=sleep-returned:1"}, "sleep", "old")
	expect.Must(t, err != nil, "it was not killed")
	expect.OK(t, waits.Wait())
}

// The limit of a job is lowered while it waits for room to wake. It wakes when there is room for the lower one.
func TestLimitLoweredWhileItWaitsToWake(t *testing.T) {
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "5g", "--name", "less")
	mustRation(t, "sleep", "less")
	blocker := startSleeper(t, 100, "--mem", "5g", "--name", "blocker")
	p.tell("alloc 1048576")
	waitQueued(t, jobs, 1)
	mustRation(t, "limit", "less", "1g")
	_, answered := p.answers(time.Minute)
	expect.Must(t, answered, "it does not wake")
	blocker.works()
}

// A job has limits on two GPUs and memory on one of them. It wakes when both have room for its limits.
func TestWakeNeedsAllItsLimits(t *testing.T) {
	slow(t)
	jobs := sleepMachine(t, "0")
	t.Setenv("FAKEGPU", "smallx2:8g")
	p := startSleeper(t, 100, "--mem", "5g", "--name", "two")
	mustRation(t, "sleep", "--wake", "manual", "two")
	other := exec.Command("ration", "run", "--wait=1m", "--mem", "1=6g", "--name", "other", "--", "sleep", "600")
	expect.OK(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	for end := time.Now().Add(time.Minute); job.CheckUnused("other") == nil; time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it does not start")
	}
	waitQueued(t, jobs, 0)
	out, err := rationOutput(nil, "wake", "two")
	expect.Must(t, err != nil && strings.Contains(out, "no room"), "it wakes", out)
	mustRation(t, "stop", "other")
	mustRation(t, "wake", "--wait=1m", "two")
	p.works()
	p.does("quit")
	expect.OK(t, p.command.Wait())

	// The limits of a job on one GPU do not count on the other.
	one := startSleeper(t, 100, "--mem", "5g", "--devices", "1", "--name", "one")
	mustRation(t, "sleep", "one")
	j, _ := readSleeper(t, "one")
	elsewhere := exec.Command("ration", "run", "--mem", fmt.Sprint(1-gpuOf(t, j), "=6g"), "--name", "elsewhere", "--", "sleep", "600")
	expect.OK(t, elsewhere.Start())
	t.Cleanup(func() { _ = elsewhere.Process.Kill(); _ = elsewhere.Wait() })
	for end := time.Now().Add(time.Minute); job.CheckUnused("elsewhere") == nil; time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it does not start")
	}
	mustRation(t, "wake", "one")
	one.works()
}

// gpuOf returns the machine's number of a job's only device.
func gpuOf(t *testing.T, j machine.Job) int {
	var m machine.Machine
	out, err := exec.Command("ration", "ps", "--json").Output()
	expect.OK(t, err)
	expect.OK(t, json.Unmarshal(out, &m))
	at := m.DeviceOf(&j.Devices[0])
	expect.Must(t, at >= 0, "it is on no GPU of the machine", j.Devices)
	return m.Devices[at].Device
}

// A job that was killed while it slept has ended, and sleeps no more. One with too low a limit says so.
func TestSleepStateIsTrue(t *testing.T) {
	sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	mustRation(t, "sleep", "--wake", "manual", "nb")
	said, err := rationOutput(nil, "limit", "nb", "50m")
	expect.True(t, err != nil && strings.Contains(said, "nb sleeps, with ") && strings.Contains(said, "device 0 put aside: with a limit of 50 MiB, it cannot wake until the limit is raised (--yes sets it)"), "limit says", said)
	mustRation(t, "limit", "nb", "50m", "--yes")
	for _, args := range [][]string{{"why", "nb"}, {"ps", "nb"}} {
		out := strings.Join(strings.Fields(mustRation(t, args...)), " ")
		expect.True(t, strings.Contains(out, "cannot wake with a limit of 50 MiB on device 0"), args, "says", out)
	}
	expect.OK(t, unix.Kill(p.command.Process.Pid, unix.SIGKILL))
	_ = p.command.Wait()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if j, _ := readSleeper(t, "nb"); j.State == machine.Ended {
			expect.Equal(t, j.Sleep, "", "a job that has ended is")
			for _, args := range [][]string{{"sleep", "nb"}, {"wake", "nb"}, {"wake", "--wait=1m", "nb"}} {
				said, err := rationOutput(nil, args...)
				expect.True(t, err != nil && said == "ration: nb: it has ended\n", args, "says", said)
			}
			break
		}
		expect.Must(t, time.Now().Before(end), "it does not end")
	}
}

// ration wake is killed when the driver may be bringing memory back. ration sleep does not take the job for asleep: it
// finishes the wake, and puts the job to sleep anew.
func TestSleepAfterKilledWake(t *testing.T) {
	sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	_, before := readSleeper(t, "nb")
	mustRation(t, "sleep", "nb")
	for _, step := range []string{"wake-restoring:1", "wake-restore:1", "wake-unlock:1"} {
		was, _ := readSleeper(t, "nb")
		out, err := rationOutput([]string{"RATION_TEST_DIE=" + step}, "wake", "nb")
		expect.Must(t, err != nil, "it was not killed at", step, out)
		mustRation(t, "sleep", "nb")
		is, d := readSleeper(t, "nb")
		expect.True(t, is.Sleep == machine.Asleep && is.Sleeps == was.Sleeps+1 && d.Used == 0, "after", step, "it is", is.Sleep, "for the", is.Sleeps, "time, with", d.Used)
	}
	p.works()
	awakeAndWhole(t, "nb", before.Used, p)
}

// What a job that falls asleep is about to put into the host's memory counts for others.
func TestSleepAtOnce(t *testing.T) {
	sleepMachine(t, "0")
	first := startSleeper(t, 600, "--mem", "2g", "--name", "first")
	second := startSleeper(t, 600, "--mem", "2g", "--name", "second")
	t.Setenv("RATION_SLEEP_MEMORY", "1200m")
	falling, said := startStopped(t, "sleep-aside:1", "sleep", "first")
	out, err := rationOutput(nil, "sleep", "second")
	expect.True(t, err != nil && strings.Contains(out, "RATION_SLEEP_MEMORY"), "it sleeps:", out)
	expect.OK(t, falling.Process.Signal(unix.SIGCONT))
	expect.OK(t, falling.Wait(), said.String())
	first.works()

	// Another job falls asleep after the memory was looked at. It is looked at again.
	checked, said := startStopped(t, "sleep-checked:1", "sleep", "second")
	mustRation(t, "sleep", "first")
	expect.OK(t, checked.Process.Signal(unix.SIGCONT))
	err = checked.Wait()
	expect.True(t, err != nil && strings.Contains(said.String(), "RATION_SLEEP_MEMORY"), "it sleeps:", said.String())
	j, _ := readSleeper(t, "second")
	expect.Equal(t, j.Sleep, "", "the job that was refused is")
	first.works()
	mustRation(t, "sleep", "second")
	second.works()
}

// The process that waits to wake a job was killed. ration sleep starts another.
func TestWaiterKilled(t *testing.T) {
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	mustRation(t, "sleep", "nb")
	for _, pid := range waiters(filepath.Join(jobs, "nb", job.RegionName)) {
		expect.OK(t, unix.Kill(pid, unix.SIGKILL))
	}
	mustRation(t, "sleep", "nb")
	p.works()
}
