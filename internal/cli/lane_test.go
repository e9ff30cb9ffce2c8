package cli

import (
	"fmt"
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

// Jobs with --sleep-fast: the library moves their memory itself (internal/sleep/PROTOCOL.md, The lane). The stand-in driver
// keeps the contents of memory that was mapped, and of no other.

// laneMachine is a stand-in GPU of 256 MiB.
func laneMachine(t *testing.T) (jobs string) {
	jobs = sleepMachine(t, "0")
	t.Setenv("FAKEGPU", "small:256m")
	t.Setenv("FAKEGPU_BLOCK", "2m")
	t.Setenv("FAKEGPU_CONTEXT", "4m")
	return jobs
}

// startLane starts a program of a job with --sleep-fast, with numbers in its memory.
func startLane(t *testing.T, mib int, args ...string) *sleepingProgram {
	p := startSleeper(t, mib, append([]string{"--sleep-fast"}, args...)...)
	p.does("alloc 3000000") // not a whole number of blocks
	p.does("fill 7")
	return p
}

// lanesOf returns the states of the lanes of a job's processes.
func lanesOf(t *testing.T, jobs, name string) (states []int) {
	t.Helper()
	r, err := region.Open(filepath.Join(jobs, name, job.RegionName), region.Options{NoCreate: true})
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Sleepers()
	expect.OK(t, err)
	for i := range all {
		l, err := r.Lane(&all[i])
		expect.OK(t, err)
		states = append(states, l.State())
	}
	return states
}

// sameAndWhole checks that a job is awake, with the same numbers in its memory.
func sameAndWhole(t *testing.T, name string, used uint64, programs ...*sleepingProgram) {
	t.Helper()
	for _, p := range programs {
		p.does("same 7")
	}
	awakeAndWhole(t, name, used, programs...)
}

// The library moves the memory of two processes, which is charged as it is without --sleep-fast.
func TestLane(t *testing.T) {
	jobs := laneMachine(t)
	plain := startSleeper(t, 20, "--mem", "80m", "--name", "plain")
	plain.does("alloc 3000000")
	_, usual := readSleeper(t, "plain")
	plain.does("quit")
	first := startLane(t, 20, "--mem", "100m", "--name", "pair")
	_, alone := readSleeper(t, "pair")
	expect.Equal(t, alone.Used, usual.Used, "bytes charged with --sleep-fast")
	second := startLane(t, 40, "--join", "--name", "pair")
	_, before := readSleeper(t, "pair")
	expect.Equal(t, fmt.Sprint(lanesOf(t, jobs, "pair")), fmt.Sprint([]int{abi.LaneIn, abi.LaneIn}), "lanes of a job that is awake")

	for range 2 {
		mustRation(t, "sleep", "--wake", "manual", "pair")
		j, d := readSleeper(t, "pair")
		expect.True(t, j.Sleep == machine.Asleep && d.Used == 0 && d.Aside == before.Used && d.Driver == 0, "it is", j.Sleep, "with", d.Used, d.Aside, d.Driver)
		expect.Equal(t, fmt.Sprint(lanesOf(t, jobs, "pair")), fmt.Sprint([]int{abi.LaneOut, abi.LaneOut}), "lanes of a job that sleeps")
		mustRation(t, "wake", "pair")
		expect.Equal(t, fmt.Sprint(lanesOf(t, jobs, "pair")), fmt.Sprint([]int{abi.LaneIn, abi.LaneIn}), "lanes of a job that woke")
		sameAndWhole(t, "pair", before.Used, first, second)
	}
	// Its next call wakes it, also a copy: the memory that it copies is not there.
	mustRation(t, "sleep", "pair")
	first.does("same 7")
	sameAndWhole(t, "pair", before.Used, first, second)

	first.does("freeall")
	second.does("freeall")
	_, d := readSleeper(t, "pair")
	expect.True(t, d.Used == d.Driver && d.Used < 16<<20, "after all is freed", d.Used, "are used, by the driver", d.Driver)
	first.does("quit")
	second.does("quit")
}

// A helper is killed at each step that has to do with the lane, and the next one finishes its work.
func TestLaneKilledAtEachStep(t *testing.T) {
	slow(t)
	laneMachine(t)
	first := startLane(t, 20, "--mem", "100m", "--name", "pair")
	second := startLane(t, 10, "--join", "--name", "pair")
	_, before := readSleeper(t, "pair")
	dies := func(at string, args ...string) {
		t.Helper()
		out, err := rationOutput([]string{"RATION_TEST_DIE=" + at}, args...)
		expect.True(t, err != nil && strings.Contains(err.Error(), "killed"), args, "did not come to", at, ":", err, out)
	}
	for _, at := range []string{"lane-ask:1", "lane-ask:2", "lane-wait:1", "lane-wait:2", "lane-out:1", "sleep-lock:2", "sleep-aside:2", "sleep-asleep:1"} {
		dies(at, "sleep", "--wake", "manual", "pair")
		mustRation(t, "wake", "pair")
		sameAndWhole(t, "pair", before.Used, first, second)
		dies(at, "sleep", "--wake", "manual", "pair")
		mustRation(t, "sleep", "--wake", "manual", "pair")
		j, d := readSleeper(t, "pair")
		expect.True(t, j.Sleep == machine.Asleep && d.Driver == 0 && d.Aside == before.Used, "after", at, "it is", j.Sleep, d.Driver, d.Aside)
		mustRation(t, "wake", "pair")
		sameAndWhole(t, "pair", before.Used, first, second)
	}
	for _, at := range []string{"wake-restore:2", "wake-running:1", "lane-back:1", "lane-back:2", "wake-lane:1", "wake-lane:2", "wake-restored:1"} {
		mustRation(t, "sleep", "--wake", "manual", "pair")
		dies(at, "wake", "pair")
		mustRation(t, "wake", "pair")
		sameAndWhole(t, "pair", before.Used, first, second)
	}
}

// A killed helper needs no hand: the next call of the job is served, and finds its memory.
func TestLaneKilledAndUsed(t *testing.T) {
	laneMachine(t)
	p := startLane(t, 20, "--mem", "60m", "--name", "nb")
	_, before := readSleeper(t, "nb")
	for _, at := range []string{"lane-ask:1", "lane-wait:1", "lane-out:1", "sleep-moved:1"} {
		out, err := rationOutput([]string{"RATION_TEST_DIE=" + at}, "sleep", "nb")
		expect.True(t, err != nil && strings.Contains(err.Error(), "killed"), "sleep did not come to", at, ":", err, out)
		sameAndWhole(t, "nb", before.Used, p)
	}
}

// Threads use the memory all the time while the job is put to sleep: none finds it gone.
func TestLaneInUse(t *testing.T) {
	laneMachine(t)
	p := startLane(t, 20, "--mem", "60m", "--name", "busy")
	_, before := readSleeper(t, "busy")
	p.tell("use 4")
	slept := 0
	for range 6 {
		if out, err := rationOutput(nil, "sleep", "busy"); err == nil {
			slept++
		} else {
			expect.True(t, strings.Contains(out, "cannot sleep"), out)
		}
	}
	expect.True(t, slept > 0, "a job whose threads make short calls did not fall asleep")
	p.does("fill 7") // the answer of use comes first
	text, answered := p.answers(time.Minute)
	expect.Must(t, answered && strings.HasPrefix(text, "ok"), "fill was answered with", text)
	mustRation(t, "wake", "busy")
	sameAndWhole(t, "busy", before.Used, p)
}

// A call that does not return keeps the job awake: the request to the lane is withdrawn.
func TestLaneBusy(t *testing.T) {
	jobs := laneMachine(t)
	first := startLane(t, 20, "--mem", "60m", "--wait-alloc", "10m", "--name", "pair")
	second := startLane(t, 10, "--join", "--name", "pair")
	first.tell(fmt.Sprint("alloc ", 20<<20)) // waits for the other one's memory
	_, answered := first.answers(300 * time.Millisecond)
	expect.True(t, !answered, "a request that does not fit did not wait")
	out, err := rationOutput(nil, "sleep", "--busy", "100ms", "pair")
	expect.True(t, err != nil && strings.Contains(out, "it uses the GPU for longer"), "sleep says", out)
	expect.Equal(t, fmt.Sprint(lanesOf(t, jobs, "pair")), fmt.Sprint([]int{abi.LaneIn, abi.LaneIn}), "lanes of a job that stayed awake")
	second.does("same 7")
	second.does("freeall")
	text, answered := first.answers(time.Minute)
	expect.Must(t, answered && strings.HasPrefix(text, "ok"), "the request was answered with", text)
	first.does("free")
	first.does("same 7")
	mustRation(t, "sleep", "--wake", "manual", "pair")
	mustRation(t, "wake", "pair")
	first.does("same 7")
}

// A program outside all jobs takes the room when the driver has brought its part back. The job stays where it is, and the
// next wake brings the rest.
func TestLaneFullGPU(t *testing.T) {
	jobs := laneMachine(t)
	p := startLane(t, 100, "--mem", "150m", "--name", "nb")
	_, before := readSleeper(t, "nb")
	mustRation(t, "sleep", "--wake", "manual", "nb")
	waking, said := startStopped(t, "wake-running:1", "wake", "nb")
	outside := outsideProgram(t, 200)
	expect.OK(t, waking.Process.Signal(unix.SIGCONT))
	expect.True(t, waking.Wait() != nil && strings.Contains(said.String(), "no room"), "a wake without room says", said.String())
	j, d := readSleeper(t, "nb")
	expect.True(t, j.Sleep == machine.Waking && d.Used == before.Used, "it is", j.Sleep, "with", d.Used)
	expect.Equal(t, fmt.Sprint(lanesOf(t, jobs, "nb")), fmt.Sprint([]int{abi.LaneOut}), "lanes without room")
	p.tell("same 7") // waits, and does not fail
	_, answered := p.answers(300 * time.Millisecond)
	expect.True(t, !answered, "a call did not wait for its memory")
	expect.OK(t, outside.Process.Kill())
	_ = outside.Wait()
	mustRation(t, "wake", "nb")
	text, answered := p.answers(time.Minute)
	expect.Must(t, answered && strings.HasPrefix(text, "ok"), "same was answered with", text)
	sameAndWhole(t, "nb", before.Used, p)
}

// Children and ends: a forked child keeps nothing, a program that ends asleep ends, and a killed one is forgotten.
func TestLaneForkAndEnd(t *testing.T) {
	jobs := laneMachine(t)
	p := startLane(t, 20, "--mem", "60m", "--name", "nb")
	_, before := readSleeper(t, "nb")
	p.does("fork")
	mustRation(t, "sleep", "--wake", "manual", "nb")
	mustRation(t, "wake", "nb")
	sameAndWhole(t, "nb", before.Used, p)
	mustRation(t, "sleep", "nb")
	expect.OK(t, p.in.Close()) // it ends: the driver waits for the wake
	ended := make(chan error, 1)
	go func() { ended <- p.command.Wait() }()
	select {
	case err := <-ended:
		expect.OK(t, err)
	case <-time.After(time.Minute):
		t.Fatal("a program that sleeps does not end")
	}

	killed := startLane(t, 20, "--mem", "60m", "--name", "other")
	for _, at := range []string{"lane-wait:1", "lane-out:1", "sleep-asleep:1"} {
		helper, _ := startStopped(t, at, "sleep", "--wake", "manual", "other")
		r, err := region.Open(filepath.Join(jobs, "other", job.RegionName), region.Options{NoCreate: true})
		expect.OK(t, err)
		all, err := r.Sleepers()
		expect.OK(t, err)
		r.Close()
		expect.OK(t, unix.Kill(all[0].PID, unix.SIGKILL))
		_ = killed.command.Wait()
		expect.OK(t, helper.Process.Signal(unix.SIGCONT))
		_ = helper.Wait()
		out := mustRation(t, "ps", "--json")
		expect.True(t, !strings.Contains(out, `"name": "other"`), "the job of a killed program is still there:", out)
		killed = startLane(t, 20, "--mem", "60m", "--name", "other")
	}
}
