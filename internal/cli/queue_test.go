package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/node"
	"ration/machine"
)

// queueMachine is a stand-in GPU of 140 GiB for all jobs of a folder. It returns the folder of jobs.
func queueMachine(t *testing.T) (jobs string) {
	testenv.Made(t, embedded.Ration.Built(), embedded.FakeGPU.Built())
	bin := t.TempDir()
	testenv.Made(t, compile(bin))
	jobs = filepath.Join(t.TempDir(), "jobs")
	for name, value := range map[string]string{
		"FAKEGPU": "small:140g", "FAKEGPU_STATE": filepath.Join(t.TempDir(), "gpu"), "FAKEGPU_QUIET": "1",
		"LD_LIBRARY_PATH": filepath.Join(bin, "driver"), "PATH": bin + ":" + os.Getenv("PATH"), job.EnvFolder: jobs,
	} {
		t.Setenv(name, value)
	}
	return jobs
}

// waitQueued returns when n commands wait.
func waitQueued(t *testing.T, jobs string, n int) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		all, err := job.Queue(jobs)
		expect.OK(t, err)
		if len(all) == n {
			return
		}
		expect.Must(t, time.Now().Before(end), len(all), "commands wait, not", n)
	}
}

// Twenty jobs of 20 GiB on 140 GiB: at most seven run at once, all start in the order in which they came, and those that
// are killed, waiting or running, leave nothing behind.
func TestQueueChaos(t *testing.T) {
	const all, size, fit = 20, 20, 7
	jobs := queueMachine(t)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	var mu sync.Mutex
	blocker := exec.Command("ration", "run", "--mem", "130g", "--name", "blocker", "--", "sleep", "600")
	expect.OK(t, blocker.Start())
	for !job.Running(job.Job{Name: "blocker", Path: filepath.Join(jobs, "blocker", job.RegionName)}) {
		time.Sleep(time.Millisecond)
	}
	var commands []*exec.Cmd
	killed := map[int]bool{}
	var done sync.WaitGroup
	for i := range all {
		// The program takes all of its ration, so it fails if the device is full.
		cmd := exec.Command("ration", "run", "--wait=2m", "--mem", fmt.Sprint(size, "g"), "--name", fmt.Sprint("job", i), "--",
			"sh", "-c", "eat 20000 && sleep 0.05")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		expect.OK(t, cmd.Start())
		waitQueued(t, jobs, i+1) // so that the order is known
		commands = append(commands, cmd)
		done.Add(1)
		go func() {
			defer done.Done()
			err := cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			expect.True(t, err == nil || killed[i], "job", i, err, stderr.String())
		}()
	}
	kill := func(i int) {
		mu.Lock()
		killed[i] = true
		mu.Unlock()
		_ = commands[i].Process.Kill()
	}
	for range 4 {
		kill(random.IntN(all)) // while it waits
	}
	mu.Lock()
	waiting := all - len(killed)
	mu.Unlock()
	waitQueued(t, jobs, waiting)
	expect.OK(t, blocker.Process.Kill())
	_ = blocker.Wait()
	for range 3 {
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		kill(random.IntN(all)) // waiting, starting, running or ended
	}
	done.Wait()
	left, err := job.Queue(jobs)
	expect.True(t, err == nil && len(left) == 0, "in the queue are left", left, err)

	// Their order, and how many there were at once: a job is created before the next, and its end is recorded before
	// its room is free. The end of one that was killed is not known.
	m, err := machine.Read()
	expect.OK(t, err)
	started := slices.DeleteFunc(m.Jobs, func(j machine.Job) bool { return j.Name == "blocker" })
	slices.SortFunc(started, func(a, b machine.Job) int { return a.Created.Compare(b.Created) })
	before := -1
	for n, j := range started {
		i, err := strconv.Atoi(strings.TrimPrefix(j.Name, "job"))
		expect.True(t, err == nil && i > before, j.Name, "was not started in order, but after", before)
		before = i
		atOnce := 1
		for _, earlier := range started[:n] {
			if earlier.Ended.After(j.Created) {
				atOnce++
			}
		}
		expect.True(t, atOnce <= fit, atOnce, "at once")
	}
	expect.True(t, len(started) >= all-len(killed), len(started), "started")
}

// x in ration top ends the command that waits, and none that waits under its name later.
func TestTopStopsWaiting(t *testing.T) {
	jobs := queueMachine(t)
	blocker := exec.Command("ration", "run", "--mem", "130g", "--name", "blocker", "--", "sleep", "600")
	expect.OK(t, blocker.Start())
	t.Cleanup(func() {
		_ = blocker.Process.Signal(os.Interrupt)
		_ = blocker.Wait()
	})
	running := func() bool {
		return job.Running(job.Job{Name: "blocker", Path: filepath.Join(jobs, "blocker", job.RegionName)})
	}
	for end := time.Now().Add(time.Minute); !running() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	late := exec.Command("ration", "run", "--wait=2m", "--mem", "20g", "--name", "late", "--", "true")
	expect.OK(t, late.Start())
	var waiting []machine.Job
	for end := time.Now().Add(time.Minute); len(waiting) == 0 || waiting[0].Path == ""; { // what waits is written behind its ticket
		expect.Must(t, time.Now().Before(end), "nothing waits", waiting)
		m, err := node.Jobs()
		expect.OK(t, err)
		waiting = node.WaitingJobs(m.Waiting)
	}
	expect.Must(t, len(waiting) == 1, waiting)
	j := waiting[0]
	j.Started = j.Started.Add(-time.Second)
	_, err := topActions{}.Stop(j)
	expect.True(t, err != nil && strings.Contains(err.Error(), "late: it waits no more"), err)
	said, err := topActions{}.Stop(waiting[0])
	expect.True(t, err == nil && said == "late: 1 process got a signal", said, err)
	expect.True(t, late.Wait() != nil, "it has ended by itself")
	waitQueued(t, jobs, 0)
	_, err = topActions{}.Stop(waiting[0])
	expect.True(t, err != nil && strings.Contains(err.Error(), "late: it waits no more"), err)
}
