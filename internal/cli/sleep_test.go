package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/abi"
	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/machine"
)

// slow leaves a test out of make test.
func slow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds: make test-slow runs it")
	}
}

// sleepMachine is a stand-in GPU of 8 GiB whose driver puts memory aside, at so many bytes in a microsecond.
func sleepMachine(t *testing.T, speed string) (jobs string) {
	jobs = queueMachine(t)
	testenv.Made(t, embedded.Workload.Built())
	t.Setenv("FAKEGPU", "small:8g")
	t.Setenv("FAKEGPU_CHECKPOINT", speed)
	t.Cleanup(func() { // before the folder is removed, in which they may make files
		for pids := waiters(jobs); len(pids) > 0; pids = waiters(jobs) {
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			time.Sleep(time.Millisecond)
		}
	})
	return jobs
}

// sleepingProgram is a CUDA program of a job.
type sleepingProgram struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     chan string
}

// startSleeper starts a program that holds so many MiB, as a job or in one.
func startSleeper(t *testing.T, mib int, args ...string) *sleepingProgram {
	p := newSleeper(t, args...)
	p.start(mib)
	return p
}

func newSleeper(t *testing.T, args ...string) *sleepingProgram {
	folder, err := embedded.Workload.Unpack()
	expect.OK(t, err)
	p := &sleepingProgram{t: t, command: exec.Command("ration", append(append([]string{"run"}, args...), "--", filepath.Join(folder, "workload"))...), out: make(chan string, 16)}
	p.command.Stderr = os.Stderr
	return p
}

func (p *sleepingProgram) start(mib int) {
	t := p.t
	var err error
	p.in, err = p.command.StdinPipe()
	expect.OK(t, err)
	out, err := p.command.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, p.command.Start())
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.out <- s.Text()
		}
		close(p.out)
	}()
	t.Cleanup(func() { _ = p.in.Close(); _ = p.command.Process.Kill(); _ = p.command.Wait() })
	p.does("init")
	p.does(fmt.Sprint("alloc ", mib<<20))
}

func (p *sleepingProgram) tell(command string) {
	_, err := io.WriteString(p.in, command+"\n")
	expect.OK(p.t, err)
}

// answers reports whether the program answers in time.
func (p *sleepingProgram) answers(within time.Duration) (string, bool) {
	select {
	case text := <-p.out:
		return text, true
	case <-time.After(within):
		return "", false
	}
}

func (p *sleepingProgram) does(command string) {
	p.t.Helper()
	p.tell(command)
	text, answered := p.answers(time.Minute)
	expect.Must(p.t, answered && strings.HasPrefix(text, "ok"), command, "was answered with", text)
}

// works checks that the program can use the GPU.
func (p *sleepingProgram) works() {
	p.t.Helper()
	p.does("alloc 1048576")
	p.does("free")
}

// ration runs a command and returns its output; environ is added.
func rationOutput(environ []string, args ...string) (string, error) {
	cmd := exec.Command("ration", args...)
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustRation(t *testing.T, args ...string) string {
	t.Helper()
	out, err := rationOutput(nil, args...)
	expect.Must(t, err == nil, "ration", args, "failed:", err, out)
	return out
}

// readSleeper returns a job and its device.
func readSleeper(t *testing.T, name string) (machine.Job, machine.Device) {
	t.Helper()
	cmd := exec.Command("ration", "ps", "--json") // this process was started without the driver
	out, err := cmd.Output()
	expect.OK(t, err)
	var m machine.Machine
	expect.OK(t, json.Unmarshal(out, &m))
	for _, j := range m.Jobs {
		if j.Name == name && len(j.Devices) == 1 {
			return j, j.Devices[0]
		}
	}
	t.Fatal("there is no job ", name)
	return machine.Job{}, machine.Device{}
}

// awakeAndWhole checks that a job is awake, that its programs can use the GPU, and that the books agree.
func awakeAndWhole(t *testing.T, name string, used uint64, programs ...*sleepingProgram) {
	t.Helper()
	j, d := readSleeper(t, name)
	expect.True(t, j.Sleep == "" && d.Used == used && d.Aside == 0 && d.Driver == used, "it is", j.Sleep, "with", d.Used, "used and", d.Aside, "aside, by the driver", d.Driver, "not", used)
	for _, p := range programs {
		p.works()
	}
}

// A job with two processes sleeps and wakes, by hand and by a call.
func TestSleepAndWake(t *testing.T) {
	jobs := sleepMachine(t, "0")
	first := startSleeper(t, 500, "--mem", "4g", "--name", "pair")
	second := startSleeper(t, 100, "--join", "--name", "pair")
	_, before := readSleeper(t, "pair")
	expect.True(t, before.Used > 600<<20, "used", before.Used)

	out := mustRation(t, "sleep", "--wake", "manual", "pair")
	expect.True(t, strings.Contains(out, "pair is asleep") && strings.Contains(out, "2 processes"), out)
	j, d := readSleeper(t, "pair")
	expect.True(t, j.Sleep == machine.Asleep && d.Used == 0 && d.Aside == before.Used && d.Driver == 0, "it is", j.Sleep, "with", d.Used, d.Aside, d.Driver)
	expect.True(t, strings.Contains(mustRation(t, "ps"), "asleep"), "ps does not show it")
	expect.True(t, strings.Contains(mustRation(t, "ps", "--format", "{{.job}} {{.state}} {{.sleep}}"), "pair running asleep\n"), "not as docs/scripting.md says")
	expect.True(t, strings.Contains(mustRation(t, "sleep", "--wake", "manual", "pair"), "already"), "it fell asleep twice")

	second.tell("alloc 1048576") // waits
	_, answered := second.answers(300 * time.Millisecond)
	expect.True(t, !answered, "a call of a job that sleeps did not wait")
	expect.True(t, strings.Contains(mustRation(t, "wake", "pair"), "pair is awake"), "wake")
	_, answered = second.answers(time.Minute)
	expect.True(t, answered, "a call that waited does not go on")
	second.does("free")
	awakeAndWhole(t, "pair", before.Used, first, second)
	expect.True(t, strings.Contains(mustRation(t, "wake", "pair"), "already"), "it woke twice")

	var slept Slept
	expect.OK(t, json.Unmarshal([]byte(mustRation(t, "sleep", "--json", "pair")), &slept))
	expect.True(t, slept.State == "asleep" && slept.Processes == 2, "it says", slept)
	first.works() // wakes it
	awakeAndWhole(t, "pair", before.Used, first, second)

	// One of two is killed asleep: what it had aside is forgotten.
	mustRation(t, "sleep", "--wake", "manual", "pair")
	r, err := region.OpenReadOnly(filepath.Join(jobs, "pair", job.RegionName))
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Processes()
	expect.OK(t, err)
	expect.Must(t, len(all) == 2, "processes", all)
	expect.OK(t, unix.Kill(all[1].Seen, unix.SIGKILL))
	mustRation(t, "wake", "pair")
	_, d = readSleeper(t, "pair")
	expect.True(t, d.Used > 0 && d.Used < before.Used && d.Aside == 0, "after the death of one the other has", d.Used)
}

// What cannot sleep stays awake, and says why.
func TestCannotSleep(t *testing.T) {
	slow(t)
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "stays")
	_, d := readSleeper(t, "stays")
	refuse := func(environ []string, why string) {
		t.Helper()
		out, err := rationOutput(environ, "sleep", "stays")
		expect.True(t, err != nil && strings.Contains(out, why), "sleep says", out, err)
	}
	r, err := region.Open(filepath.Join(jobs, "stays", job.RegionName), region.Options{NoCreate: true})
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Sleepers()
	expect.OK(t, err)
	pid := all[0].PID
	expect.OK(t, unix.Kill(pid, unix.SIGSTOP))
	waitStopped(t, pid)
	refuse(nil, "is stopped (continue it: kill -CONT")
	expect.OK(t, unix.Kill(pid, unix.SIGCONT))
	refuse([]string{"FAKEGPU_CHECKPOINT="}, "it cannot sleep")
	awakeAndWhole(t, "stays", d.Used, p)

	unlock, err := r.LockSleep(0)
	expect.OK(t, err)
	refuse(nil, "another process is putting the job to sleep or waking it")
	unlock()
	out, err := rationOutput(nil, "sleep", "--wake", "never", "stays")
	expect.True(t, err != nil && strings.Contains(out, "auto or manual"), out)
	awakeAndWhole(t, "stays", d.Used, p)

	// Nor does a stopped process wake.
	mustRation(t, "sleep", "stays")
	expect.OK(t, unix.Kill(pid, unix.SIGSTOP))
	waitStopped(t, pid)
	out, err = rationOutput(nil, "wake", "stays")
	expect.True(t, err != nil && strings.Contains(out, "is stopped (it sleeps on; continue it: kill -CONT"), out, err)
	expect.OK(t, unix.Kill(pid, unix.SIGCONT))
	mustRation(t, "wake", "stays")
	awakeAndWhole(t, "stays", d.Used, p)
}

// waitStopped returns when a process is stopped.
func waitStopped(t *testing.T, pid int) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stat, err := proc.ReadStat(pid)
		expect.OK(t, err)
		if stat.Stopped() {
			return
		}
		expect.Must(t, time.Now().Before(end), "pid", pid, "does not stop")
	}
}

// outsideProgram starts a program in no job that holds so many MiB.
func outsideProgram(t *testing.T, mib int) *exec.Cmd {
	folder, err := embedded.Workload.Unpack()
	expect.OK(t, err)
	cmd := exec.Command(filepath.Join(folder, "workload"))
	in, err := cmd.StdinPipe()
	expect.OK(t, err)
	answers, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = fmt.Fprint(in, "init\nalloc ", mib<<20, "\n")
	expect.OK(t, err)
	s := bufio.NewScanner(answers)
	for range 2 {
		expect.Must(t, s.Scan() && strings.HasPrefix(s.Text(), "ok"), "the program outside says", s.Text())
	}
	return cmd
}

// A job that sleeps makes room, and wakes only when there is room again.
func TestSleepMakesRoom(t *testing.T) {
	sleepMachine(t, "0")
	old := startSleeper(t, 3000, "--mem", "5g", "--name", "old")
	_, before := readSleeper(t, "old")
	out, err := rationOutput(nil, "run", "--wait=100ms", "--mem", "5g", "--", "true")
	expect.True(t, err != nil && strings.Contains(out, "no room"), "there is room beside a job that is awake:", out)
	waits := make(chan *sleepingProgram)
	go func() { waits <- startSleeper(t, 4000, "--wait", "--mem", "5g", "--name", "young") }()
	time.Sleep(100 * time.Millisecond)
	mustRation(t, "sleep", "--wake", "manual", "old")
	young := <-waits

	out, err = rationOutput(nil, "wake", "old")
	expect.True(t, err != nil && strings.Contains(out, "no room for 5 GiB on GPU 0") && strings.Contains(out, "young"), "a wake without room says", out, err)
	out, err = rationOutput(nil, "wake", "--wait=200ms", "old")
	expect.True(t, err != nil && strings.Contains(out, "it sleeps on"), out)
	j, d := readSleeper(t, "old")
	expect.True(t, j.Sleep == machine.Asleep && d.Aside == before.Used && d.Used == 0, "it is", j.Sleep, d.Aside, d.Used)

	woken := make(chan string)
	go func() { woken <- mustRation(t, "wake", "--wait", "old") }()
	for end := time.Now().Add(time.Minute); !strings.Contains(mustRation(t, "queue"), "old"); {
		expect.Must(t, time.Now().Before(end), "ration queue does not show a job that waits to wake")
	}
	expect.Equal(t, strings.Count(mustRation(t, "ps"), "old"), 1, "in ps, lines of a job that waits to wake")
	young.does("quit")
	expect.True(t, strings.Contains(<-woken, "old is awake"), "wake --wait")
	awakeAndWhole(t, "old", before.Used, old)

	// A program outside all jobs takes the room while the job wakes.
	mustRation(t, "sleep", "--wake", "manual", "old")
	waking := exec.Command("ration", "wake", "old")
	waking.Env = append(os.Environ(), "RATION_TEST_DIE=wake-waking:1:stop")
	var said strings.Builder
	waking.Stderr = &said
	expect.OK(t, waking.Start())
	waitStopped(t, waking.Process.Pid)
	outside := outsideProgram(t, 6000)
	expect.OK(t, waking.Process.Signal(unix.SIGCONT))
	expect.True(t, waking.Wait() != nil && strings.Contains(said.String(), "GPU 0 has"), "a wake without room says", said.String())
	out, err = rationOutput(nil, "wake", "old")
	expect.True(t, err != nil && strings.Contains(out, "no room"), "a wake without room says", out, err)
	expect.OK(t, outside.Process.Kill())
	mustRation(t, "wake", "--wait", "old")
	awakeAndWhole(t, "old", before.Used, old)

	// The limit was lowered meanwhile.
	mustRation(t, "sleep", "--wake", "manual", "old")
	mustRation(t, "limit", "old", "1g", "--yes")
	out, err = rationOutput(nil, "wake", "old")
	expect.True(t, err != nil && strings.Contains(out, "raise it: ration limit"), "a wake beyond the limit says", out, err)
	mustRation(t, "limit", "old", "5g")
	mustRation(t, "wake", "old")
	awakeAndWhole(t, "old", before.Used, old)
}

// A helper is killed at each step, of sleep and of wake, and the next one finishes its work.
func TestSleepKilledAtEachStep(t *testing.T) {
	slow(t)
	sleepMachine(t, "0")
	first := startSleeper(t, 200, "--mem", "4g", "--name", "pair")
	second := startSleeper(t, 100, "--join", "--name", "pair")
	_, before := readSleeper(t, "pair")
	sleeps := []string{"sleep-locked:1", "sleep-checked:1", "sleep-falling:1", "sleep-lock:1", "sleep-lock:2", "sleep-aside:1", "sleep-aside:2",
		"sleep-moved:1", "sleep-asleep:1", "sleep-returned:1", "sleep-returned:2"}
	wakes := []string{"wake-waking:1", "wake-charged:1", "wake-charged:2", "wake-restoring:1", "wake-restore:1", "wake-restore:2", "wake-unlock:1",
		"wake-unlock:2", "wake-restored:1", "wake-awake:1"}
	dies := func(at string, args ...string) {
		t.Helper()
		out, err := rationOutput([]string{"RATION_TEST_DIE=" + at}, args...)
		expect.True(t, err != nil && strings.Contains(err.Error(), "killed"), args, "did not come to", at, ":", err, out)
	}
	fallsAsleep := func(at string) {
		t.Helper()
		mustRation(t, "sleep", "--wake", "manual", "pair")
		j, d := readSleeper(t, "pair")
		expect.True(t, j.Sleep == machine.Asleep && d.Used == 0 && d.Driver == 0 && d.Aside == before.Used, "after", at, "it is", j.Sleep, d.Used, d.Driver, d.Aside)
		mustRation(t, "wake", "pair")
		awakeAndWhole(t, "pair", before.Used, first, second)
	}
	for _, at := range sleeps {
		dies(at, "sleep", "--wake", "manual", "pair")
		mustRation(t, "wake", "pair")
		awakeAndWhole(t, "pair", before.Used, first, second)
		dies(at, "sleep", "--wake", "manual", "pair")
		fallsAsleep(at)
	}
	for _, at := range wakes {
		mustRation(t, "sleep", "--wake", "manual", "pair")
		dies(at, "wake", "pair")
		mustRation(t, "wake", "pair")
		awakeAndWhole(t, "pair", before.Used, first, second)
		mustRation(t, "sleep", "--wake", "manual", "pair")
		dies(at, "wake", "pair")
		fallsAsleep(at)
	}
}

// A killed helper needs no hand: the next call of the job is served, at whichever step the helper was.
func TestSleepKilledAndUsed(t *testing.T) {
	sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "nb")
	_, before := readSleeper(t, "nb")
	for _, at := range []string{"sleep-lock:1", "sleep-aside:1", "sleep-moved:1", "sleep-asleep:1", "sleep-returned:1"} {
		out, err := rationOutput([]string{"RATION_TEST_DIE=" + at}, "sleep", "nb")
		expect.True(t, err != nil && strings.Contains(err.Error(), "killed"), "sleep did not come to", at, ":", err, out)
		p.works()
		awakeAndWhole(t, "nb", before.Used, p)
	}
}

// The words of a region's Cannot bits are complete.
func TestCannotText(t *testing.T) {
	for bit := uint64(1); bit <= abi.CannotUnknown; bit <<= 1 {
		text := region.CannotText(bit)
		expect.True(t, text != "" && !strings.Contains(text, "does not know"), "bit", bit, text)
	}
	expect.True(t, region.CannotText(0) == "" && strings.Contains(region.CannotText(1<<40), "does not know"), "others")
}

// A helper is killed while the driver locks a process that is stopped. The process runs as it seems, and is locked when
// it continues; the next helper does not leave it so.
func TestSleepLockUnderWay(t *testing.T) {
	jobs := sleepMachine(t, "0")
	p := startSleeper(t, 100, "--mem", "1g", "--name", "stopped")
	_, before := readSleeper(t, "stopped")
	r, err := region.Open(filepath.Join(jobs, "stopped", job.RegionName), region.Options{NoCreate: true})
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Sleepers()
	expect.OK(t, err)

	helper := exec.Command("ration", "sleep", "stopped")
	helper.Env = append(os.Environ(), "RATION_TEST_DIE=sleep-lock:1:stop")
	expect.OK(t, helper.Start())
	waitStopped(t, helper.Process.Pid)
	expect.OK(t, unix.Kill(all[0].PID, unix.SIGSTOP))
	waitStopped(t, all[0].PID)
	expect.OK(t, helper.Process.Signal(unix.SIGCONT))
	time.Sleep(300 * time.Millisecond) // it asks for the lock
	expect.OK(t, helper.Process.Kill())
	_ = helper.Wait()

	woken := make(chan string)
	go func() { out, _ := rationOutput(nil, "wake", "stopped"); woken <- out }()
	time.Sleep(500 * time.Millisecond)
	expect.OK(t, unix.Kill(all[0].PID, unix.SIGCONT))
	expect.True(t, strings.Contains(<-woken, "is awake"), "wake")
	time.Sleep(100 * time.Millisecond)
	p.tell("alloc 1048576")
	_, answered := p.answers(5 * time.Second)
	expect.Must(t, answered, "the program is locked")
	p.does("free")
	awakeAndWhole(t, "stopped", before.Used, p)
}

// A request that waits for memory of its job (--wait-alloc) does not take the empty accounts of a job that sleeps for
// room: it neither wakes the job nor is served, and waits on when the job is awake.
func TestSleepBesideWaiting(t *testing.T) {
	sleepMachine(t, "0")
	holder := startSleeper(t, 1100, "--mem", "2g", "--wait-alloc", "10m", "--name", "full")
	waits := startSleeper(t, 100, "--join", "--name", "full")
	waits.tell(fmt.Sprint("alloc ", 1000<<20))
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		j, _ := readSleeper(t, "full")
		if slices.ContainsFunc(j.Processes, func(p machine.Process) bool { return len(p.Waits) > 0 }) {
			break
		}
		expect.Must(t, time.Now().Before(end), "the request does not wait")
	}
	_, before := readSleeper(t, "full")
	mustRation(t, "sleep", "full")
	_, answered := waits.answers(3 * time.Second) // it tries once a second
	j, d := readSleeper(t, "full")
	expect.True(t, !answered && j.Sleep == machine.Asleep && d.Used == 0, "answered", answered, "the job is", j.Sleep, "and uses", d.Used)
	mustRation(t, "wake", "full")
	_, d = readSleeper(t, "full")
	expect.Equal(t, d.Used, before.Used, "after the wake")
	holder.does("free")
	text, answered := waits.answers(time.Minute)
	expect.True(t, answered && strings.HasPrefix(text, "ok"), "the request that waited was answered with", text)
}
