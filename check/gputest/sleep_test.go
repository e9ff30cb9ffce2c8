package gputest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/bench"
	"ration/check/expect"
	"ration/internal/humanfmt"
	"ration/internal/proc"
)

// TestSleep puts jobs to sleep and wakes them. What their programs hold is compared each time. The checks together take
// about twelve minutes on an H200, and up to 60 GiB of host memory.
func TestSleep(t *testing.T) {
	for _, c := range []struct {
		name  string
		room  uint64
		needs []string
		run   func(*trial)
	}{
		{"speed", 24 * gib, nil, func(t *trial) { t.sleepSpeed(short(t, 256*mib, 10_000_000_000), 3) }},
		{"lane", 44 * gib, nil, func(t *trial) { t.sleepLane(short(t, 16*mib, 40_000_000_000), 3) }},
		{"lane-torch", 9 * gib, []string{torch}, func(t *trial) { t.fast(); t.sleepFramework(torch) }},
		{"lane-cupy", 9 * gib, []string{cupy}, func(t *trial) { t.fast(); t.sleepFramework(cupy) }},
		{"lane-jax", 9 * gib, []string{jax}, func(t *trial) { t.fast(); t.sleepFramework(jax, "XLA_PYTHON_CLIENT_PREALLOCATE=false") }},
		{"lane-launches", 16 * gib, nil, func(t *trial) { t.fast(); t.sleepLaunching(short(t, 1, 3), short(t, 2, 10)) }},
		{"lane-threads", 16 * gib, nil, func(t *trial) { t.fast(); t.slowContexts(); t.sleepMixing(6, short(t, 2, 10)) }},
		{"lane-killed", 8 * gib, nil, func(t *trial) { t.fast(); t.sleepKilledHelper(short(t, 4, 20)) }},
		{"progress", 12 * gib, nil, func(t *trial) { t.sleepProgress(short(t, 256*mib, 10_000_000_000)) }},
		{"torch", 9 * gib, []string{torch}, func(t *trial) { t.sleepFramework(torch) }},
		{"torch-async", 9 * gib, []string{torch}, func(t *trial) { t.sleepFramework(torch, torchAlloc("backend:cudaMallocAsync")...) }},
		{"torch-expandable", 9 * gib, []string{torch}, func(t *trial) { t.sleepFramework(torch, torchAlloc("expandable_segments:True")...) }},
		{"cupy", 9 * gib, []string{cupy}, func(t *trial) { t.sleepFramework(cupy) }},
		{"jax", 9 * gib, []string{jax}, func(t *trial) { t.sleepFramework(jax, "XLA_PYTHON_CLIENT_PREALLOCATE=false") }},
		{"launches", 16 * gib, nil, func(t *trial) { t.sleepLaunching(short(t, 3, 6), short(t, 2, 17)) }},
		{"threads", 24 * gib, nil, func(t *trial) { t.sleepMixing(6, short(t, 3, 15)) }},
		{"full-device", 16 * gib, nil, (*trial).sleepFullDevice},
		{"killed-helper", 8 * gib, nil, func(t *trial) { t.sleepKilledHelper(short(t, 6, 20)) }},
		{"refused", 16 * gib, nil, (*trial).sleepRefused},
		{"mps", 8 * gib, nil, (*trial).sleepMPS},
		{"manual", 8 * gib, nil, (*trial).sleepManual},
		{"end-asleep", 16 * gib, nil, (*trial).sleepEnd},
		{"eight-in-turn", 0, nil, func(t *trial) { t.sleepInTurn(short(t, 4, 8), short(t, 128*mib, 8*gib)) }},
		{"cycles", 49 * gib, nil, func(t *trial) { t.sleepCycles(short(t, 3, 24), 1000, short(t, 3*time.Second, 8*time.Minute)) }},
	} {
		check(t, c.name, c.room, c.needs, func(t *trial) {
			t.checkpoints("1700:4500")
			c.run(t)
		})
	}
}

// sleepSpeed compares the driver's time for a program without ration with its time for a program in a job, and with that
// of ration sleep and ration wake.
func (t *trial) sleepSpeed(bytes uint64, rounds int) {
	calls := t.startCalls()
	bare := t.startSleeper(bytes)
	t.open(bytes + 2*gib)
	ours := t.startSleeper(bytes)
	var out, back [3]bench.Samples // bare, in a job, by ration
	var huge, bareHuge uint64
	for range rounds {
		o, b, h := calls.outAndBack(bare)
		out[0], back[0], bareHuge = append(out[0], o), append(back[0], b), max(bareHuge, h)
		o, b, h = calls.outAndBack(ours)
		out[1], back[1], huge = append(out[1], o), append(back[1], b), max(huge, h)
		out[2] = append(out[2], t.moved("sleep", "--wake", "manual", ours.job.Name))
		ours.asleep()
		back[2] = append(back[2], t.moved("wake", ours.job.Name))
	}
	bare.whole()
	ours.whole()
	ours.awake()
	for _, way := range []struct {
		name   string
		all    [3]bench.Samples
		target float64
	}{{"out", out, 0.55}, {"back", back, 0.75}} {
		median := [3]float64{}
		for i, samples := range way.all {
			median[i] = spread(samples).Median
		}
		verdict := kept
		if median[2] > way.target*median[0] {
			verdict = missed
		}
		t.note("%s: bare %.2f s, in a job %.2f s (%.2f of it), by ration %.2f s (%.2f, target ≤ %.2f: %s)", way.name, median[0], median[1], median[1]/median[0],
			median[2], median[2]/median[0], way.target, verdict)
	}
	t.note("%s in huge pages in a job, %s without", humanfmt.Bytes(huge), humanfmt.Bytes(bareHuge))
}

// sleepFramework puts a program of a framework to sleep, again and again. Its own next call wakes it.
func (t *trial) sleepFramework(framework string, env ...string) {
	const cycles = 2
	t.open(8 * gib)
	t.env = append(t.env, env...)
	p := &sleepingJob{program: t.start(nil, t.script("asleep", framework, fmt.Sprint(gib), fmt.Sprint(cycles))...), job: t.job}
	allocator := p.at("held").values["allocator"]
	for range cycles {
		t.moved("sleep", p.job.Name)
		p.asleep()
		p.Tell("")
		p.at("compared")
		p.awake()
	}
	p.finish()
	t.note("%d cycles with allocator %s", cycles, allocator)
	t.checkNothingLeft()
}

// sleepLaunching puts jobs to sleep whose programs launch kernels all the time. Each launch is done once.
func (t *trial) sleepLaunching(jobs, cycles int) {
	all := t.startSleepers(jobs, 64*mib, 2*gib)
	var group sync.WaitGroup
	refused := make([]int, jobs)
	for i, p := range all {
		p.Tell("count")
		group.Go(func() {
			for range cycles {
				// It is awake again when ration sleep returns, or soon after that.
				if out, err := t.ration("sleep", "--busy", "10s", p.job.Name); err != nil {
					refused[i]++
					t.Log(out)
				}
			}
		})
	}
	group.Wait()
	var launched, longest float64
	for i, p := range all {
		expect.Must(t, refused[i] == 0, "job", p.job.Name, "did not sleep", refused[i], "times of", cycles)
		p.Tell("compare")
		n := p.numbers(3)
		expect.Must(t, t.onStandIn() || n[0] == n[1], n[0], "kernels were launched, and", n[1], "were done")
		p.compared()
		p.awake()
		launched, longest = launched+n[0], max(longest, n[2])
	}
	t.note("%d sleeps, %.0f launches, the longest %.1f s", jobs*cycles, launched, longest/1e9)
}

// sleepMixing puts a job to sleep whose threads allocate, free, launch, capture streams, and make contexts. It may be
// refused for a capture, or an allocation that takes long.
func (t *trial) sleepMixing(threads, cycles int) {
	t.open(16 * gib) // contexts that threads make at once are charged for each other, too
	p := t.startSleeper(256 * mib)
	p.Tell("mix %d", threads)
	slept := 0
	for range cycles {
		out, err := t.ration("sleep", "--busy", "10s", p.job.Name)
		expect.Must(t, err == nil || strings.Contains(out, "captur") || strings.Contains(out, "in the middle of"), "ration sleep printed", out)
		if err == nil {
			slept++
		}
		time.Sleep(rand.N(300 * time.Millisecond))
	}
	p.Tell("compare")
	done := p.numbers(1)[0]
	p.compared()
	p.awake()
	t.note("%d of %d times asleep, %.0f operations", slept, cycles, done)
}

// sleepFullDevice fills the device while a job sleeps: by a job, and by a program in no job.
func (t *trial) sleepFullDevice() {
	t.open(4 * gib)
	p := t.startSleeper(short(t, 128*mib, 2*gib))
	t.moved("sleep", "--wake", "manual", p.job.Name)
	all := t.free()

	t.inside(func(t *trial) { // limits leave no room
		t.open(all - 2*gib)
		other := t.startSleeper(256 * mib)
		t.refusedBy("no room", "wake", p.job.Name)
		p.asleep()
		p.wakesWhen(func() { other.kill(); other.Close() })
	})
	p.whole()
	p.awake()

	t.moved("sleep", "--wake", "manual", p.job.Name)
	t.inside(func(t *trial) { // there is no room on the device
		other := t.start(nil, t.native("workload")...)
		other.ask(0, "init")
		for piece := t.free() - gib; other.refused(piece); piece -= gib / 4 {
			expect.Must(t, piece > gib, "a program in no job gets no memory")
		}
		t.refusedBy("no room", "wake", p.job.Name)
		p.asleep()
		p.wakesWhen(func() { other.kill(); other.Close() })
	})
	p.whole()
	p.awake()
	t.note("refused, and awake when there was room")
}

// wakesWhen waits for room to wake the job. The job may wake after there is room, and not before.
func (p *sleepingJob) wakesWhen(makeRoom func()) {
	waits := p.t.command("wake", "--wait=1m", p.job.Name)
	var said strings.Builder
	waits.Stdout, waits.Stderr = &said, &said
	p.t.must(waits.Start())
	ended := make(chan error, 1)
	go func() { ended <- waits.Wait() }()
	select {
	case <-ended:
		p.t.Fatalf("ration wake --wait did not wait: %s", said.String())
	case <-time.After(1500 * time.Millisecond):
	}
	p.asleep()
	makeRoom()
	expect.OK(p.t, <-ended, "ration wake --wait printed", said.String())
}

// sleepKilledHelper kills ration sleep and ration wake at random moments. ration wake then finishes the work.
func (t *trial) sleepKilledHelper(kills int) {
	t.open(4 * gib)
	p := t.startSleeper(256 * mib)
	out := time.Duration(t.moved("sleep", "--wake", "manual", p.job.Name) * float64(time.Second))
	back := time.Duration(t.moved("wake", p.job.Name) * float64(time.Second))
	states := map[string]int{}
	for i := range short(t, 6, kills) {
		args, most := []string{"sleep", "--wake", "manual", p.job.Name}, out
		if i%4 == 3 {
			t.moved("sleep", "--wake", "manual", p.job.Name)
			args, most = []string{"wake", p.job.Name}, back
		}
		helper := t.command(args...)
		t.must(helper.Start())
		time.Sleep(rand.N(most))
		_ = helper.Process.Kill() // it may have ended
		_ = helper.Wait()
		states[args[0]+" "+p.state().Sleep]++
		t.mustRation("wake", p.job.Name)
		p.whole()
		p.awake()
	}
	t.note("states that killed helpers left: %v", states)
}

// sleepRefused checks that jobs stay awake that cannot sleep.
func (t *trial) sleepRefused() {
	for _, c := range []struct{ name, do, undo, reason string }{
		{"managed memory", fmt.Sprintf("managed %d", 16*mib), "", "managed"},
		{"shared memory", "export", "", "shares memory"},
		{"a capture", "capture", "release", "captur"},
	} {
		t.open(4 * gib)
		p := t.startSleeper(64 * mib)
		p.ask(0, "%s", c.do)
		t.refusedBy(c.reason, "sleep", p.job.Name)
		if c.undo != "" {
			p.ask(0, "%s", c.undo)
			t.moved("sleep", p.job.Name)
		}
		p.whole()
		expect.Must(t, eventually(func() bool { return p.state().Sleep == "" }), "job", p.job.Name, "is not awake")
		t.note("%s: refused", c.name)
		t.killAndForget(p.program)
	}
	stopped := t.startSleepers(1, 64*mib, 4*gib)[0]
	t.must(unix.Kill(stopped.pid, unix.SIGSTOP))
	expect.Must(t, eventually(func() bool { stat, err := proc.ReadStat(stopped.pid); return err == nil && stat.Stopped() }), "it does not stop")
	t.refusedBy("is stopped", "sleep", stopped.job.Name)
	t.must(unix.Kill(stopped.pid, unix.SIGCONT))
	stopped.whole()
	stopped.awake()
}

// sleepMPS checks that a job stays awake whose programs use MPS. On the stand-in there is only the file by which programs
// find its daemon.
func (t *trial) sleepMPS() {
	folder := filepath.Join(t.scratch, "mps")
	t.must(os.MkdirAll(folder, 0o700))
	environ := []string{"CUDA_MPS_PIPE_DIRECTORY=" + folder, "CUDA_MPS_LOG_DIRECTORY=" + folder}
	if t.onStandIn() {
		t.must(unix.Mkfifo(filepath.Join(folder, "control"), 0o600))
	} else {
		daemon := exec.Command("nvidia-cuda-mps-control", "-d")
		daemon.Env = t.environ(environ...)
		if out, err := daemon.CombinedOutput(); err != nil {
			t.Skipf("MPS does not start: %v %s", err, out)
		}
		defer func() {
			quit := exec.Command("nvidia-cuda-mps-control")
			quit.Env, quit.Stdin = daemon.Env, strings.NewReader("quit -t 5\n")
			if out, err := quit.CombinedOutput(); err != nil {
				t.Errorf("ending MPS: %v %s", err, out)
			}
		}()
	}
	t.open(4 * gib)
	t.env = append(t.env, environ...)
	p := t.start(nil, t.native("sleeper")...)
	p.Tell("init")
	if answer := p.line(); !strings.HasPrefix(answer, "ok") {
		t.Skipf("no program starts under MPS here: %s", answer)
	}
	p.ask(1, "hold %d 1", 64*mib)
	t.refusedBy("MPS", "sleep", t.job.Name)
	p.ask(1, "compare")
	t.killAndForget(p)
}

// sleepManual checks that calls of the program do not wake a job of --wake manual.
func (t *trial) sleepManual() {
	t.open(4 * gib)
	p := t.startSleeper(256 * mib)
	t.moved("sleep", "--wake", "manual", p.job.Name)
	p.Tell("compare")
	expect.Must(t, p.silent(3*time.Second), "it answered")
	p.asleep()
	t.moved("wake", p.job.Name)
	p.compared()
	p.awake()
}

// sleepEnd ends programs that sleep.
func (t *trial) sleepEnd() {
	for _, c := range []struct {
		name string
		wake string
		end  func(*sleepingJob)
	}{
		{"killed", "auto", func(p *sleepingJob) { p.kill() }},
		{"killed, manual", "manual", func(p *sleepingJob) { p.kill() }},
		{"ends", "auto", (*sleepingJob).quit},
		{"ends and frees nothing", "auto", func(p *sleepingJob) { p.Tell("leave"); t.must(p.Wait(stepWithin)) }},
	} {
		t.inside(func(t *trial) {
			t.open(4 * gib)
			p := t.startSleeper(short(t, 64*mib, gib))
			_, err := t.readPIDs()
			t.must(err)
			t.moved("sleep", "--wake", c.wake, p.job.Name)
			p.asleep()
			began := time.Now()
			c.end(p)
			t.note("%s: %.1f s", c.name, time.Since(began).Seconds())
			t.checkNothingLeft()
		})
	}
}

// sleepInTurn runs more jobs than there is room for at a time. The one that was used the longest time ago sleeps for the
// next one.
func (t *trial) sleepInTurn(jobs int, bytes uint64) {
	total := uint64(t.driver.Devices[t.device].Usable())
	limit := total * 2 / 7 // three at a time, with room to spare
	bytes = min(bytes, limit/2)
	awake := int(total / limit)
	t.flags = []string{"--wait"}
	var all []*sleepingJob
	began := time.Now()
	for i := range jobs {
		if i >= awake {
			t.moved("sleep", all[i-awake].job.Name)
		}
		all = append(all, t.startSleepers(1, bytes, limit)...)
	}
	waits := time.Duration(0)
	for turn := range jobs {
		p := all[turn]
		p.Tell("compare") // no room: its call waits
		t.moved("sleep", all[(turn+jobs-awake)%jobs].job.Name)
		called := time.Now()
		p.compared()
		waits = max(waits, time.Since(called))
		p.awake()
	}
	for _, p := range slices.Backward(all) { // those that are awake first
		p.quit()
	}
	t.note("%d jobs of %s, %s each, %d at a time: %.0f s in all, at most %.1f s for a turn", jobs, humanfmt.Bytes(limit), humanfmt.Bytes(bytes), awake,
		time.Since(began).Seconds(), waits.Seconds())
}

// sleepCycles puts jobs to sleep and wakes them, again and again, and compares what they hold each time.
func (t *trial) sleepCycles(jobs, cycles int, most time.Duration) {
	all := t.startSleepers(jobs, 64*mib, 2*gib)
	var group sync.WaitGroup
	done, failed := make([]int, jobs), make([]error, jobs)
	began := time.Now()
	for i, p := range all {
		group.Go(func() {
			for ; done[i]*jobs < cycles && time.Since(began) < most && failed[i] == nil; done[i]++ {
				failed[i] = p.cycle()
			}
		})
	}
	group.Wait()
	sum := 0
	for i, p := range all {
		expect.OK(t, failed[i], "job", p.job.Name, "after", done[i], "cycles")
		p.awake()
		sum += done[i]
	}
	t.note("%d cycles of %d jobs in %.0f s, 0 lost", sum, jobs, time.Since(began).Seconds())
}

// cycle puts the job to sleep, and lets the program's own call wake it.
func (p *sleepingJob) cycle() error {
	if out, err := p.t.ration("sleep", p.job.Name); err != nil {
		return fmt.Errorf("ration sleep: %w: %s", err, out)
	}
	p.Tell("compare")
	line, err := p.Line(stepWithin)
	if err == nil && line != "ok 0" && !(p.blank && strings.HasPrefix(line, "ok ")) {
		err = fmt.Errorf("it answered %s", line)
	}
	return err
}
