package gputest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/check/expect"
	"ration/check/harness"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/sleep"
	"ration/machine"
)

// checkpoints skips the check if the driver cannot put memory aside. On the stand-in it does so at so many bytes in a
// microsecond, out and back.
func (t *trial) checkpoints(speed string) {
	if t.onStandIn() {
		t.env = append(t.env, "FAKEGPU_CHECKPOINT="+speed)
		return
	}
	major, _, _ := strings.Cut(t.driver.Version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 570 {
		t.Skipf("needs a driver of 570 or later, this is %s", t.driver.Version)
	}
}

// command returns a command of ration that is in no job.
func (t *trial) command(args ...string) *exec.Cmd {
	cmd := exec.Command(t.file("ration"), args...)
	cmd.Env = t.environ(slices.Concat(t.env, []string{markVariable + t.mark})...)
	return cmd
}

// ration runs a command of ration, and returns what it printed.
func (t *trial) ration(args ...string) (string, error) {
	out, err := t.command(args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// mustRation runs a command of ration that has to succeed.
func (t *trial) mustRation(args ...string) string {
	t.Helper()
	out, err := t.ration(args...)
	expect.OK(t, err, "ration", args, out)
	return out
}

// refusedBy runs a command of ration that has to fail, and to give this reason.
func (t *trial) refusedBy(reason string, args ...string) {
	t.Helper()
	out, err := t.ration(args...)
	expect.Must(t, err != nil && strings.Contains(out, reason), "ration", args, "printed", out, "and should say", reason)
}

// moved puts a job to sleep or wakes it, and returns how many seconds it took.
func (t *trial) moved(args ...string) float64 {
	t.Helper()
	var all []struct{ Seconds float64 }
	text := t.mustRation(append(args, "--json")...)
	for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
		var one struct{ Seconds float64 }
		expect.OK(t, d.Decode(&one), text)
		all = append(all, one)
	}
	expect.Must(t, len(all) == 1, "ration", args, "printed", text)
	return all[0].Seconds
}

// sleepingJob is a job of one program that fills device memory with words that it knows again.
type sleepingJob struct {
	*program
	job   job.Job
	pid   int  // of the program; PID returns that of ration run, if the program is in a job
	blank bool // there is nothing in the device's memory: it is the stand-in's
}

// startSleeper starts a program that holds so many bytes, in the trial's job if there is one.
func (t *trial) startSleeper(bytes uint64) *sleepingJob {
	t.Helper()
	p := &sleepingJob{program: t.start(nil, t.native("sleeper")...), job: t.job}
	p.hold(bytes, len(t.programs))
	return p
}

// hold has a program that has just started take memory, and fill it with words that depend on a number.
func (p *sleepingJob) hold(bytes uint64, number int) {
	p.t.Helper()
	p.pid = int(p.ask(1, "init")[0])
	p.blank = p.ask(1, "hold %d %d", bytes, 1+number)[0] > 0
	expect.Must(p.t, !p.blank || p.t.onStandIn(), "what pid", p.pid, "wrote is not in the device's memory")
}

// quit has the program free all, and end.
func (p *sleepingJob) quit() {
	p.t.Helper()
	p.Tell("quit")
	expect.Must(p.t, strings.HasPrefix(p.line(), "ok"), "pid", p.pid)
	p.t.must(p.Wait(stepWithin))
}

// startSleepers starts jobs of one program each.
func (t *trial) startSleepers(n int, bytes, limit uint64) (all []*sleepingJob) {
	t.Helper()
	for range n {
		t.open(limit)
		all = append(all, t.startSleeper(bytes))
	}
	return all
}

// whole has the program compare what it holds, which wakes its job.
func (p *sleepingJob) whole() {
	p.t.Helper()
	p.Tell("compare")
	p.compared()
}

// compared reads the program's answer to compare.
func (p *sleepingJob) compared() {
	p.t.Helper()
	wrong := p.numbers(1)[0]
	expect.Must(p.t, p.blank || wrong == 0, wrong, "words of pid", p.pid, "are wrong")
}

// silent returns whether the program has not answered its last command within a time.
func (p *sleepingJob) silent(within time.Duration) bool {
	select {
	case line := <-p.Lines():
		p.t.Fatalf("pid %d answered %s, and its job sleeps", p.pid, line)
		return false
	case <-time.After(within):
		return true
	}
}

// state returns the job as ration shows it.
func (p *sleepingJob) state() machine.Job {
	p.t.Helper()
	status := node.ReadJob(p.job, node.Options{ReadOnly: true})
	p.t.must(status.Err())
	return status
}

// driverCount returns how many bytes the driver counts for the job's processes.
func (p *sleepingJob) driverCount(status *machine.Job) (used uint64) {
	p.t.Helper()
	pids := map[int]bool{}
	for i := range status.Processes {
		pids[status.Processes[i].HostPID] = true
		p.t.known.Store(status.Processes[i].HostPID, true)
	}
	counts, err := p.t.driverCounts(pids)
	p.t.must(err)
	for _, bytes := range counts {
		used += bytes
	}
	return used
}

// asleep checks that the job holds nothing, by ration's count and the driver's.
func (p *sleepingJob) asleep() {
	p.t.Helper()
	status := p.state()
	expect.Must(p.t, status.Sleep == machine.Asleep, "job", p.job.Name, "is", status.Sleep, "and should be asleep")
	for _, d := range status.Devices {
		expect.Must(p.t, d.Used == 0, "job", p.job.Name, "sleeps, and ration counts", d.Used, "bytes")
	}
	if used := p.driverCount(&status); used > toleranceBytes {
		p.t.Fatalf("job %s sleeps, and the driver counts %d bytes", p.job.Name, used)
	}
}

// awake waits until the job is awake, and checks that ration's count and the driver's agree.
func (p *sleepingJob) awake() {
	p.t.Helper()
	expect.Must(p.t, eventually(func() bool { return p.state().Sleep == "" }), "job", p.job.Name, "does not become awake")
	var text string
	expect.Must(p.t, eventually(func() bool {
		status := p.state()
		a := account{pid: p.pid, driver: p.driverCount(&status)}
		for _, d := range status.Devices {
			a.ration += d.Used
		}
		text = fmt.Sprintf("%+v", a)
		return a.withinTolerance()
	}), "the counts of job", p.job.Name, "differ:", text)
}

// driverCalls is a process that asks the driver to move the memory of others, as the driver does it by itself.
type driverCalls struct{ *program }

// startCalls starts it. It is in no job, and nothing is preloaded into it.
func (t *trial) startCalls() *driverCalls {
	t.Helper()
	process, err := harness.Start(harness.Spec{Name: sleep.Calls, Cmd: t.command(sleep.Calls)})
	t.must(err)
	c := &driverCalls{&program{process, t}}
	t.programs = append(t.programs, c.program)
	expect.Equal(t, c.line(), "", "starting the driver")
	return c
}

// call asks for one call about a program, and returns how long it took.
func (c *driverCalls) call(call gpu.CheckpointCall, p *sleepingJob) float64 {
	c.t.Helper()
	began := time.Now()
	c.Tell("%d %d 10000", call, p.pid)
	expect.Equal(c.t, c.line(), "0 0", "call", int(call), "about pid", p.pid)
	return time.Since(began).Seconds()
}

// outAndBack has the driver move a program's memory out and back. It returns the seconds, and how much of the program's
// memory was in huge pages meanwhile.
func (c *driverCalls) outAndBack(p *sleepingJob) (out, back float64, huge uint64) {
	c.t.Helper()
	c.call(gpu.LockCall, p)
	out = c.call(gpu.PutAsideCall, p)
	huge = c.t.hugePages(p.pid)
	back = c.call(gpu.BringBackCall, p)
	c.call(gpu.UnlockCall, p)
	return out, back, huge
}

// hugePages returns how many bytes of a process are in huge pages.
func (t *trial) hugePages(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	t.must(err)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "AnonHugePages:" {
			n, err := strconv.ParseUint(words[1], 10, 54)
			t.must(err)
			return n << 10
		}
	}
	return 0
}
