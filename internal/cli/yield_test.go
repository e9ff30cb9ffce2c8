package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/sleep"
	"ration/machine"
)

// waitUnused returns when jobs are known to do nothing, or to work.
func waitUnused(t *testing.T, unused bool, names ...string) {
	t.Helper()
	for _, name := range names {
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			j, _ := readSleeper(t, name)
			expect.Must(t, j.Sleep == "", name, "is", j.Sleep)
			if j.UnusedSince.IsZero() != unused {
				break
			}
			expect.Must(t, time.Now().Before(end), name, "is unused since", j.UnusedSince)
		}
	}
}

// Of three idle jobs that fill the device, the one that has been unused longest sleeps for a command that waits. Its next
// call waits until that command has ended, because the other two work by then.
func TestYield(t *testing.T) {
	slow(t)
	jobs, working := idleMachine(t)
	start := func(name string) *sleepingProgram {
		return startSleeper(t, 500, "--mem", "2400m", "--name", name, "--sleep-after", "150s")
	}
	a, oldest, c := start("a"), start("oldest"), start("c")
	working(pidOf(t, jobs, "a"), pidOf(t, jobs, "c"))
	waitUnused(t, true, "oldest")
	waitUnused(t, false, "a", "c")
	_, before := readSleeper(t, "oldest")
	working()
	waitUnused(t, true, "a", "c")

	fourth := startSleeper(t, 1000, "--mem", "2g", "--wait", "--name", "fourth")
	for name, state := range map[string]string{"a": "", "oldest": machine.Asleep, "c": ""} {
		j, _ := readSleeper(t, name)
		expect.True(t, j.Sleep == state, name, "is", j.Sleep, "and not", state)
		expect.True(t, state != "" || j.Sleeps == 0, name, "has slept", j.Sleeps, "times")
	}
	working(pidOf(t, jobs, "a"), pidOf(t, jobs, "c"))
	waitUnused(t, false, "a", "c")
	oldest.tell("alloc 1048576")
	for end := time.Now().Add(time.Minute); !strings.Contains(mustRation(t, "queue"), "oldest"); time.Sleep(50 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "it is not in the queue")
	}
	_, answered := oldest.answers(2 * time.Second)
	expect.True(t, !answered, "it woke without room")
	fourth.does("quit")
	expect.OK(t, fourth.command.Wait())
	_, answered = oldest.answers(time.Minute)
	expect.True(t, answered, "it does not wake")
	oldest.does("free")
	awakeAndWhole(t, "oldest", before.Used, a, oldest, c)
}

// A job that has just woken is not put to sleep again by what was found before: neither by a process that reads its file
// now, nor by one that has read it before.
func TestJustWoken(t *testing.T) {
	slow(t)
	jobs, _ := idleMachine(t)
	p := startSleeper(t, 100, "--mem", "1g", "--name", "woken", "--sleep-after", "150s")
	waitUnused(t, true, "woken")
	expect.OK(t, unix.Kill(p.command.Process.Pid, unix.SIGSTOP)) // it writes nothing any more
	found, _ := readSleeper(t, "woken")
	mustRation(t, "sleep", "woken")
	mustRation(t, "wake", "woken")
	j, _ := readSleeper(t, "woken")
	expect.True(t, j.Sleeps == found.Sleeps+1 && j.UnusedSince.IsZero(), "it has slept", j.Sleeps, "times, and is unused since", j.UnusedSince)
	found.Path = filepath.Join(jobs, "woken", job.RegionName)
	err := sleep.ForRoom(&found)
	expect.True(t, errors.Is(err, sleep.ErrInUse), "it is put to sleep by an old finding", err)
}
