package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
	"ration/machine"
)

// idleMachine is a sleepMachine whose driver shows the processes as working that the function has named last.
func idleMachine(t *testing.T) (jobs string, working func(pids ...int)) {
	jobs = sleepMachine(t, "0")
	file := filepath.Join(t.TempDir(), "working")
	t.Setenv("FAKEGPU_WORKING", file)
	working = func(pids ...int) {
		expect.OK(t, os.WriteFile(file+".new", []byte(strings.Trim(fmt.Sprint(pids), "[]")), 0o600))
		expect.OK(t, os.Rename(file+".new", file))
	}
	working()
	return jobs, working
}

// pidOf returns the PID of a job's only process.
func pidOf(t *testing.T, jobs, name string) int {
	r, err := region.OpenReadOnly(filepath.Join(jobs, name, job.RegionName))
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Processes()
	expect.OK(t, err)
	expect.Must(t, len(all) == 1, "processes", all)
	return all[0].Seen
}

// waitSleep returns when a job is in a state of sleep; empty for awake.
func waitSleep(t *testing.T, name, state string) machine.Job {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		j, _ := readSleeper(t, name)
		if j.Sleep == state {
			return j
		}
		expect.Must(t, time.Now().Before(end), name, "is", j.Sleep, "and not", state, j.CannotSleep)
	}
}

// staysAwake checks for some time that a job does not fall asleep.
func staysAwake(t *testing.T, name string, long time.Duration) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		j, _ := readSleeper(t, name)
		expect.Must(t, j.Sleep == "", name, "is", j.Sleep)
	}
}

// A job with --sleep-after sleeps when its processes have done nothing on the device, and never while they work there.
func TestSleepAfter(t *testing.T) {
	slow(t)
	jobs, working := idleMachine(t)
	p := startSleeper(t, 500, "--mem", "4g", "--name", "naps", "--sleep-after", "2s")
	second := startSleeper(t, 100, "--mem", "4g", "--name", "never")
	_, before := readSleeper(t, "naps")
	pid := pidOf(t, jobs, "naps")

	working(pid)
	staysAwake(t, "naps", 15*time.Second)
	j, _ := readSleeper(t, "naps")
	expect.True(t, j.SleepAfter == 2000 && j.UnusedSince.IsZero(), "its rule is", j.SleepAfter, "and it does nothing since", j.UnusedSince)

	working()
	waitSleep(t, "naps", machine.Asleep)
	p.works() // wakes it
	awakeAndWhole(t, "naps", before.Used, p)
	waitSleep(t, "naps", machine.Asleep) // again
	p.works()
	staysAwake(t, "never", 0)
	second.works()
}

// With --wake manual a call does not wake the job.
func TestSleepAfterManual(t *testing.T) {
	slow(t)
	idleMachine(t)
	p := startSleeper(t, 500, "--mem", "4g", "--name", "naps", "--sleep-after", "1s", "--wake", "manual")
	waitSleep(t, "naps", machine.Asleep)
	p.tell("alloc 1048576")
	_, answered := p.answers(3 * time.Second)
	expect.True(t, !answered, "a call woke the job")
	mustRation(t, "wake", "naps")
	_, answered = p.answers(time.Minute)
	expect.True(t, answered, "a call that waited does not go on")
}

// Every run of a shared job watches it, so it also sleeps after the first one has ended; and a second process that
// works keeps all awake.
func TestSleepAfterShared(t *testing.T) {
	slow(t)
	jobs, working := idleMachine(t)
	first := startSleeper(t, 500, "--mem", "4g", "--name", "pair", "--sleep-after", "1s")
	working(pidOf(t, jobs, "pair"))
	second := startSleeper(t, 100, "--join", "--name", "pair")
	staysAwake(t, "pair", 10*time.Second)
	first.does("quit")
	expect.OK(t, first.command.Wait())
	waitSleep(t, "pair", machine.Asleep)
	second.works()
}

// A job that should sleep and cannot says why, and stays awake.
func TestSleepAfterCannot(t *testing.T) {
	slow(t)
	idleMachine(t)
	t.Setenv("FAKEGPU_CHECKPOINT", "")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "stays", "--sleep-after", "1s")
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		j, d := readSleeper(t, "stays")
		if j.CannotSleep != "" {
			expect.True(t, strings.Contains(j.CannotSleep, "it cannot sleep") && j.Sleep == "" && !j.UnusedSince.IsZero(), j.CannotSleep, j.Sleep)
			awakeAndWhole(t, "stays", d.Used, p)
			break
		}
		expect.Must(t, time.Now().Before(end), "it does not say why it cannot sleep")
	}
	expect.True(t, strings.Contains(mustRation(t, "ps", "stays"), "should sleep, and cannot: "), "ps does not show it")
}

// A process that is killed while it puts the job to sleep leaves it halfway. The run that watches the job finishes that.
func TestSleepAfterKilled(t *testing.T) {
	slow(t)
	idleMachine(t)
	p := startSleeper(t, 500, "--mem", "4g", "--name", "halfway", "--sleep-after", "30s")
	_, before := readSleeper(t, "halfway")
	out, err := rationOutput([]string{"RATION_TEST_DIE=sleep-lock:1"}, "sleep", "halfway")
	expect.Must(t, err != nil, "it was not killed:", out)
	waitSleep(t, "halfway", "")
	awakeAndWhole(t, "halfway", before.Used, p)
}

// A call that comes while an idle job falls asleep keeps it awake.
func TestSleepUnused(t *testing.T) {
	slow(t)
	jobs, _ := idleMachine(t)
	t.Setenv("RATION_TEST_DIE", "sleep-falling:1:stop") // the process that puts it to sleep is stopped there
	p := startSleeper(t, 100, "--mem", "1g", "--name", "used", "--sleep-after", "1s")
	t.Setenv("RATION_TEST_DIE", "")
	waitSleep(t, "used", machine.FallingAsleep)
	waitStopped(t, p.command.Process.Pid)
	p.tell("alloc 1048576")
	time.Sleep(300 * time.Millisecond) // it waits at the gate
	r, err := region.Open(filepath.Join(jobs, "used", job.RegionName), region.Options{NoCreate: true})
	expect.OK(t, err)
	defer r.Close()
	expect.OK(t, unix.Kill(p.command.Process.Pid, unix.SIGCONT))
	for end := time.Now().Add(time.Minute); ; { // without a pause: it would not sleep for long
		word, err := r.Sleep()
		expect.OK(t, err)
		expect.Must(t, word.State() != abi.Asleep && time.Now().Before(end), "it is asleep, or stays halfway:", word.State())
		if word.State() == abi.Awake {
			break
		}
	}
	_, answered := p.answers(time.Minute)
	expect.True(t, answered, "the call does not go on")
}
