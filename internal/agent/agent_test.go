package agent

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/region"
	"ration/machine"
)

// Environment variables that make this program something else than the tests.
const (
	envHold  = "RATION_TEST_HOLD"  // path of a region in which it holds memory until it is killed
	envShare = "RATION_TEST_SHARE" // it gives its descriptor of the region to another process
	envAgent = "RATION_TEST_AGENT" // it is an agent
	envTell  = "RATION_TEST_TELL"  // it is an agent that logs to its output, kills itself before that step, and writes its list anew if that is negative
)

var kills = flag.Int("kills", 12, "how often TestKilledUnderLoad and TestKilledLogging kill the agent")

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(envHold) != "":
		err = hold(os.Getenv(envHold))
	case os.Getenv(envTell) != "":
		err = runTeller(os.Getenv(envTell))
	case os.Getenv(envAgent) != "":
		err = runAgent()
	default:
		os.Exit(m.Run())
	}
	fmt.Println(err)
	os.Exit(1)
}

// hold joins a job, takes memory, is refused some, says so and waits.
func hold(path string) error {
	var opts region.Options
	opts.Limits.Memory[0] = abi.MakeLimit(1 << 30)
	r, err := region.Open(path, opts)
	if err != nil {
		return err
	}
	s, err := r.Claim("holder")
	if err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, 1<<20); err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, 1<<40); !errors.Is(err, region.ErrRefused) {
		return fmt.Errorf("was not refused: %w", err)
	}
	if os.Getenv(envShare) != "" {
		if err := shareDescriptors(path); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// shareDescriptors gives this process's descriptor of the region to another one, as a child of a
// program's does that it has not started by itself: the file is not closed when this one ends.
func shareDescriptors(path string) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	child := exec.Command("cat")
	child.Stdin = os.Stdin
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to != path {
			continue
		}
		var n int
		if _, err := fmt.Sscan(fd.Name(), &n); err != nil {
			return err
		}
		file := os.NewFile(uintptr(n), path)
		child.ExtraFiles = append(child.ExtraFiles, file)
		shared = append(shared, file) // so that it is not closed before the end
	}
	if len(child.ExtraFiles) == 0 {
		return errors.New("no descriptor of the region")
	}
	return child.Start()
}

var shared []*os.File

// inProcess reaps in this process, which is of the region's user.
func inProcess(_ context.Context, paths []string, _ int) (err error) {
	for _, path := range paths {
		j := node.ReadJob(job.Job{Path: path}, node.Options{})
		err = errors.Join(err, j.Err())
	}
	return err
}

// runAgent is an agent as ration agent is, which says when it has looked.
func runAgent() error {
	folder := job.Folder()
	socket, release, err := Listen(folder)
	if err != nil {
		return err
	}
	defer release()
	a, err := New(Options{Folder: folder, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Reap: inProcess})
	if err != nil {
		return err
	}
	go func() { _ = a.Serve(context.Background(), socket) }()
	return a.Run(context.Background(), func() { fmt.Println("ready") })
}

// testFolder is an empty folder of jobs.
func testFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "jobs")
	expect.OK(t, os.Mkdir(dir, 0o700))
	t.Setenv(job.EnvFolder, dir)
	t.Setenv(job.EnvRegion, "")
	return dir
}

// child is this program as something else.
type child struct {
	*exec.Cmd
	stdin io.Closer
}

func start(t *testing.T, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	stdin, err := cmd.StdinPipe()
	expect.OK(t, err)
	stdout, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	c := &child{cmd, stdin}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	expect.Must(t, line == "ready\n", "a child said", line, err)
	return c
}

func (c *child) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.stdin.Close()
		_ = c.Wait()
	}
}

func holder(t *testing.T, name string, env ...string) *child {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	return start(t, append(env, envHold+"="+path)...)
}

// startAgent starts an agent in this process that looks only when something makes it.
func startAgent(t *testing.T, opts Options) *Agent {
	t.Helper()
	opts.Folder = job.Folder()
	if opts.Log == nil {
		opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if opts.Interval == 0 {
		opts.Interval = time.Hour
	}
	a, err := New(opts)
	expect.OK(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(ctx, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		stop()
		expect.Equal(t, <-ended, nil)
	})
	return a
}

// await waits for so many events of a kind, and returns them.
func (a *Agent) await(t *testing.T, kind string, count int) (out []machine.Event) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		_, more := a.feed.Latest()
		all, _ := a.events.since(0)
		out = nil
		for _, e := range all {
			if e.Kind == kind {
				out = append(out, e)
			}
		}
		if len(out) >= count {
			return out
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("%d of %d events %s: %+v", len(out), count, kind, all)
		}
	}
}

// An agent that never looks by itself notices a job's start, its processes' deaths and its end,
// by what the kernel tells it, and has the dead returned to the job.
func TestNoticesAtOnce(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{Reap: inProcess})
	first := holder(t, "train")
	e := a.await(t, machine.JobStarted, 1)[0]
	expect.True(t, e.Job == "train" && e.UID == os.Geteuid(), e)
	second := holder(t, "train")
	a.Wake()
	a.await(t, machine.RequestRefused, 2) // it has seen both
	first.kill()
	d := a.await(t, machine.ProcessDied, 1)[0]
	expect.True(t, d.Death.PID == first.Process.Pid && d.Death.Total() == 1<<20, d.Death)
	m := a.Machine()
	expect.True(t, len(m.Jobs) == 1 && m.Jobs[0].State == machine.Running && m.Jobs[0].Devices[0].Used == 1<<20, m.Jobs)
	second.kill()
	a.await(t, machine.ProcessDied, 2)
	a.await(t, machine.JobEnded, 1)
}

// quietJob makes a job of which the agent hears nothing, and returns what changes its limit.
func quietJob(t *testing.T, name string) (setLimit func(bytes uint64)) {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	_, err = r.Claim("member")
	expect.OK(t, err)
	return func(bytes uint64) {
		t.Helper()
		expect.OK(t, r.SetLimit(0, abi.MakeLimit(bytes)))
	}
}

// awaitLimit waits until the agent has seen a job's limit.
func (a *Agent) awaitLimit(t *testing.T, name string, bytes uint64) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		_, next := a.feed.Latest()
		if limitOf(a.Machine(), name) == bytes {
			return
		}
		select {
		case <-next:
		case <-timeout:
			t.Fatalf("the limit of %s is %d", name, limitOf(a.Machine(), name))
		}
	}
}

func limitOf(m *machine.Machine, name string) uint64 {
	if d := find(m, name).Devices; len(d) > 0 {
		return d[0].Limit
	}
	return 0
}

// What gives a sign costs a look at that job, and not at all of them; what gives none is seen when the
// clock makes the agent look.
func TestLooksWhereThereWasASign(t *testing.T) {
	folder := testFolder(t)
	a := startAgent(t, Options{})
	a.watcher.close() // so that there are no signs but those given here
	one, two := quietJob(t, "one"), quietJob(t, "two")
	one(1 << 20)
	two(1 << 20)
	a.scanner.Hint(folder)
	a.Wake()
	a.awaitLimit(t, "one", 1<<20)
	a.awaitLimit(t, "two", 1<<20)
	// The first of two scans may have begun before; then the second has nothing left to do for Wake.
	for range 2 {
		before := a.Stats().Scans
		for a.scanSoon(); a.Stats().Scans == before; {
			time.Sleep(time.Millisecond)
		}
	}
	one(2 << 20)
	two(2 << 20)
	a.scanner.Hint(filepath.Join(folder, "one"))
	a.scanSoon()
	a.awaitLimit(t, "one", 2<<20)
	expect.Equal(t, limitOf(a.Machine(), "two"), 1<<20, "it has looked at the other")
	a.Wake()
	a.awaitLimit(t, "two", 2<<20)
}

func TestLooksByTheClock(t *testing.T) {
	folder := testFolder(t)
	a := startAgent(t, Options{Interval: 5 * time.Millisecond})
	a.watcher.close()
	set := quietJob(t, "quiet")
	a.scanner.Hint(folder)
	for limit := range uint64(4) {
		set((limit + 1) << 20)
		a.awaitLimit(t, "quiet", (limit+1)<<20)
	}
}

// However much happens, it looks at a steady pace.
func TestLooksSteadily(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{})
	const looks = 15
	began, first := time.Now(), a.Stats().Scans
	for a.Stats().Scans < first+looks {
		a.scanSoon()
	}
	// One may have been under way, and the first may be at once.
	took := time.Since(began)
	expect.True(t, took >= (looks-2-maxScans)*gap, looks, "looks within", took)
}

// A process whose files stay open in another one is noticed when it ends, too: inotify says nothing
// then, and is off here, so that nothing but the process's own end makes the agent look.
func TestNoticesDeathWithOpenFiles(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{Reap: inProcess})
	a.watcher.close()
	c := holder(t, "train", envShare+"=1")
	other := holder(t, "train")
	a.scanner.Hint(job.Folder())
	a.Wake()
	a.await(t, machine.RequestRefused, 2)
	n := a.pidsOpen()
	expect.Must(t, n == 2, "it waits for the end of", n, "processes")
	expect.OK(t, c.Process.Kill()) // its child lives on, with what it was given
	_, _ = c.Process.Wait()
	a.await(t, machine.ProcessDied, 1)
	other.kill()
}

func (a *Agent) pidsOpen() int {
	a.pids.mu.Lock()
	defer a.pids.mu.Unlock()
	return len(a.pids.open)
}

// The end of a process is told with the folder of its job; a process that only a job vouches for, one
// that is not wanted any more and one that has ended before cost nothing.
func TestPIDWatch(t *testing.T) {
	hints := make(chan string, 10)
	w, err := newPIDWatch(func(folder string) { hints <- folder })
	expect.OK(t, err)
	ended := make(chan struct{})
	go func() { w.run(); close(ended) }()
	sleeper := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		expect.OK(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		return cmd
	}
	wanted, claimed, dropped := sleeper(), sleeper(), sleeper()
	of := func(path string, verified bool, pid int) machine.Job {
		return machine.Job{Path: path, Processes: []machine.Process{{Verified: verified, PID: pid, HostPID: pid, State: machine.Live}}}
	}
	jobs := []machine.Job{of("/a/region", true, wanted.Process.Pid), of("/b/region", false, claimed.Process.Pid), of("/d/region", true, 1<<30)}
	w.set(append(jobs, of("/c/region", true, dropped.Process.Pid)))
	w.set(jobs)
	for _, cmd := range []*exec.Cmd{claimed, dropped, wanted} {
		_, _ = cmd.Process.Kill(), cmd.Wait()
	}
	expect.Equal(t, <-hints, "/a")
	dying := sleeper()
	w.set([]machine.Job{of("/e/region", true, dying.Process.Pid)})
	for _, state := range []string{machine.Ending, machine.Dead} { // it has no lock any more, and has not ended
		without := of("/e/region", false, dying.Process.Pid)
		without.Processes[0].State = state
		w.set([]machine.Job{without})
	}
	_, _ = dying.Process.Kill(), dying.Wait()
	expect.Equal(t, <-hints, "/e")
	w.mu.Lock()
	w.most = 1
	w.mu.Unlock()
	first, second := sleeper(), sleeper()
	w.set([]machine.Job{of("/a/region", true, first.Process.Pid), of("/b/region", true, second.Process.Pid)})
	expect.True(t, len(w.open) == 1 && len(hints) == 0, len(w.open), "are open", len(hints), "hints more")
	w.close()
	<-ended
}

// The next agent knows the same events as one that was killed, each once.
func TestEventsSurvive(t *testing.T) {
	testFolder(t)
	c := holder(t, "train")
	holder(t, "train")
	c.kill()
	_ = inProcess(context.Background(), []string{filepath.Join(job.Folder(), "train", job.RegionName)}, 0)
	ids := func() map[machine.EventID]int {
		out := map[machine.EventID]int{}
		a := startAgent(t, Options{})
		a.await(t, machine.ProcessDied, 1)
		all, _ := a.events.since(0)
		for i := range all {
			out[all[i].ID()]++
		}
		return out
	}
	first, second := ids(), ids()
	expect.Equal(t, len(first), 4, first) // a start, two refusals, a death
	for id, n := range first {
		expect.True(t, n == 1 && second[id] == 1 && len(second) == len(first), id, n, "times, and then", second[id], "times")
	}
}

// The ring keeps the latest events, hands each to a follower once, and takes none twice.
func TestEventRing(t *testing.T) {
	r := newEventRing()
	event := func(i int) machine.Event { return machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(i)} }
	next, got := uint64(0), 0
	for i := range maxEvents + 100 {
		n := len(r.add([]machine.Event{event(i), event(i)}))
		expect.Must(t, n == 1, n, "were new")
		if i%1000 == 0 {
			var some []machine.Event
			some, next = r.since(next)
			got += len(some)
		}
	}
	some, _ := r.since(next)
	got += len(some)
	expect.Equal(t, got, maxEvents+100, "a follower got")
	all, _ := r.since(0)
	expect.True(t, len(all) == maxEvents && all[0].Path == "100" && len(r.known) == maxEvents,
		len(all), "events from", all[0].Path, len(r.known), "known")
}
