package agent

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/reap"
	"ration/internal/region"
	"ration/machine"
)

// Environment variables that make this program something else than the tests.
const (
	envHold  = "RATION_TEST_HOLD"  // path of a region in which it holds memory until it is killed
	envShare = "RATION_TEST_SHARE" // it gives its descriptor of the region to another process
	envAgent = "RATION_TEST_AGENT" // it is an agent
)

var kills = flag.Int("kills", 12, "how often TestKilledUnderLoad kills the agent")

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(envHold) != "":
		err = hold(os.Getenv(envHold))
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
	opts.Limits.Memory[0] = abi.MakeLimit(1<<30, 0)
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
		j := reap.ReadJob(job.Job{Path: path}, reap.Options{})
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
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, stdin}
	t.Cleanup(c.kill)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a child said %q, %v", line, err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return start(t, append(env, envHold+"="+path)...)
}

// startAgent starts an agent in this process that looks only when something makes it.
func startAgent(t *testing.T, opts Options) *Agent {
	t.Helper()
	opts.Folder, opts.Log = job.Folder(), slog.New(slog.NewTextHandler(io.Discard, nil))
	if opts.Interval == 0 {
		opts.Interval = time.Hour
	}
	a, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(ctx, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a
}

// await waits for so many events of a kind, and returns them.
func (a *Agent) await(t *testing.T, kind string, count int) (out []machine.Event) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		all, _, more := a.events.since(0)
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
	if e := a.await(t, machine.JobStarted, 1)[0]; e.Job != "train" || e.UID != os.Geteuid() {
		t.Errorf("got %+v", e)
	}
	second := holder(t, "train")
	a.Wake()
	a.await(t, machine.RequestRefused, 2) // it has seen both
	first.kill()
	d := a.await(t, machine.ProcessDied, 1)[0]
	if d.Death.PID != first.Process.Pid || d.Death.Total() != 1<<20 {
		t.Errorf("got %+v", d.Death)
	}
	if m := a.Machine(); len(m.Jobs) != 1 || m.Jobs[0].State != machine.Running || m.Jobs[0].Devices[0].Used != 1<<20 {
		t.Errorf("got %+v", m.Jobs)
	}
	second.kill()
	a.await(t, machine.ProcessDied, 2)
	a.await(t, machine.JobEnded, 1)
}

// A process whose files stay open in another one is noticed when it ends, too.
func TestNoticesDeathWithOpenFiles(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{Reap: inProcess})
	c := holder(t, "train", envShare+"=1")
	other := holder(t, "train")
	a.Wake()
	a.await(t, machine.RequestRefused, 2)
	// The looks that the start has made it take are over: it is the death that makes it look.
	for before := uint64(0); before != a.Stats().Looks || a.pidsOpen() < 2; {
		before = a.Stats().Looks
		time.Sleep(4 * joinTime)
	}
	if err := c.Process.Kill(); err != nil { // its child lives on, with what it was given
		t.Fatal(err)
	}
	_, _ = c.Process.Wait()
	a.await(t, machine.ProcessDied, 1)
	other.kill()
}

func (a *Agent) pidsOpen() int {
	a.pids.mu.Lock()
	defer a.pids.mu.Unlock()
	return len(a.pids.open)
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
		all, _, _ := a.events.since(0)
		for i := range all {
			out[all[i].ID()]++
		}
		return out
	}
	first, second := ids(), ids()
	if len(first) != 4 { // a start, two refusals, a death
		t.Errorf("got %v", first)
	}
	for id, n := range first {
		if n != 1 || second[id] != 1 || len(second) != len(first) {
			t.Errorf("%+v: %d times, and then %d times", id, n, second[id])
		}
	}
}

// The ring keeps the latest events, hands each to a follower once, and takes none twice.
func TestEventRing(t *testing.T) {
	r := newEventRing()
	event := func(i int) machine.Event { return machine.Event{Kind: machine.JobStarted, Path: fmt.Sprint(i)} }
	next, got := uint64(0), 0
	for i := range maxEvents + 100 {
		if n := len(r.add([]machine.Event{event(i), event(i)})); n != 1 {
			t.Fatalf("%d were new", n)
		}
		if i%1000 == 0 {
			var some []machine.Event
			some, next, _ = r.since(next)
			got += len(some)
		}
	}
	some, _, _ := r.since(next)
	if got += len(some); got != maxEvents+100 {
		t.Errorf("a follower got %d", got)
	}
	all, _, more := r.since(0)
	if len(all) != maxEvents || all[0].Path != "100" || len(r.known) != maxEvents {
		t.Errorf("%d events from %s, %d known", len(all), all[0].Path, len(r.known))
	}
	r.add([]machine.Event{event(-1)})
	<-more
}

// The history is as long as it says, has gaps where there was nothing, and is a user's own.
func TestHistory(t *testing.T) {
	h := newHistory()
	now := time.Unix(1e9, 0)
	busy := 50
	for i := range historyLength + 20 {
		m := machine.Machine{Devices: []machine.GPU{{Device: 1, Used: uint64(i), Utilization: &busy}}}
		if i%2 == 0 || i > 40 {
			m.Jobs = append(m.Jobs, machine.Job{Path: "mine", UID: 7, State: machine.Running, Died: 3, Devices: []machine.Device{{Device: 2, Used: uint64(i), Peak: 1, Refused: 9}, {Device: 5, Limited: true}}})
		}
		if i < 10 {
			m.Jobs = append(m.Jobs, machine.Job{Path: "theirs", UID: 8, State: machine.Running, Devices: []machine.Device{{Used: 5}}})
		}
		h.add(&m, now)
		h.add(&m, now.Add(historyInterval/2)) // too early
		now = now.Add(historyInterval)
	}
	out := h.read(func(uid int) bool { return uid == 7 })
	if len(out.Times) != historyLength || len(out.Devices) != 1 || len(out.Jobs) != 1 || len(out.Jobs[0].Used) != historyLength {
		t.Fatalf("%d times, %d devices, %d jobs", len(out.Times), len(out.Devices), len(out.Jobs))
	}
	j := out.Jobs[0]
	if j.Used[19] != nil || *j.Used[20] != 40 || *j.Used[historyLength-1] != historyLength+19 || *j.Refused[historyLength-1] != 9 || *j.Died[historyLength-1] != 3 || j.Device != 2 {
		t.Errorf("device %d: %v, %v, %v", j.Device, j.Used[19:21], *j.Used[historyLength-1], *j.Died[historyLength-1])
	}
	if *out.Devices[0].Used[0] != 20 || *out.Devices[0].Utilization[5] != 50 {
		t.Errorf("got %+v", out.Devices[0])
	}
	if len(h.jobs) != 1 {
		t.Errorf("%d series are kept", len(h.jobs))
	}
	for i := range 2 * maxHistory { // however many jobs there are
		h.addJob(&machine.Job{Path: fmt.Sprint(i), Devices: []machine.Device{{Used: 1}}}, 1)
	}
	if len(h.jobs) > maxHistory {
		t.Errorf("%d series are kept", len(h.jobs))
	}
}

// Whoever makes files without pause is not listened to for a while; the others are.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	hints := make(chan string, 4096)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	noisy, quiet := filepath.Join(dir, "noisy"), filepath.Join(dir, "quiet")
	for _, f := range []string{noisy, quiet} {
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.set([]string{noisy, quiet}, nil, nil)
	<-hints
	<-hints // both are watched
	for i := range 2 * maxWatchEvents {
		if err := os.WriteFile(filepath.Join(noisy, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	go w.run()
	if err := os.WriteFile(filepath.Join(quiet, "one"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for <-hints != quiet {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, watched := w.watched[noisy]; watched {
		t.Error("the noisy folder is watched")
	}
	if _, watched := w.watched[quiet]; !watched {
		t.Error("the quiet folder is not watched")
	}
}

// A process that joins or ends opens and closes the region, which is worth a look; where a job
// has ended the agent itself does that when it looks, and it is not.
func TestWatchesOpening(t *testing.T) {
	dir := t.TempDir()
	hints := make(chan string, 100)
	w, err := newWatcher(func(folder string) { hints <- folder })
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	active, ended := filepath.Join(dir, "active"), filepath.Join(dir, "ended")
	for _, f := range []string{active, ended} {
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{job.RegionName, "info"} {
			if err := os.WriteFile(filepath.Join(f, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.set(nil, []string{active}, []string{ended})
	<-hints
	<-hints
	go w.run()
	for _, path := range []string{ended + "/" + job.RegionName, active + "/info", active + "/" + job.RegionName} { // the last is worth a look
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if got := <-hints; got != active {
		t.Errorf("got %s", got)
	}
	if err := os.Remove(filepath.Join(ended, "info")); err != nil {
		t.Fatal(err)
	}
	for <-hints != ended {
	}
}

// What others have is seen in totals only.
func TestVisible(t *testing.T) {
	m := &machine.Machine{Folder: "/run/ration", Hidden: 3, Devices: []machine.GPU{{Rations: 5, Jobs: 2}},
		Jobs:    []machine.Job{{Name: "mine", Path: "a", UID: 7}, {Name: "theirs", Path: "b", UID: 8, Command: []string{"secret"}}, {Path: "c", UID: -1}},
		Outside: []machine.Outside{{PID: 1, UID: 7}, {PID: 2, UID: 8, Name: "secret"}},
		Findings: []machine.Finding{{Kind: machine.Overbooked}, {Kind: machine.Drift, Path: "a"}, {Kind: machine.Drift, Path: "b", Text: "secret"}, {Kind: machine.OutsideJobs, PID: 1},
			{Kind: machine.OutsideJobs, PID: 2, Text: "secret"}, {Kind: machine.Unanswering, Text: "secret"}}}
	got := Visible(m, 7, false)
	if len(got.Jobs) != 1 || got.Jobs[0].Name != "mine" || len(got.Outside) != 1 || len(got.Findings) != 3 || got.Devices[0].Rations != 5 {
		t.Errorf("got %+v", got)
	}
	if text := fmt.Sprintf("%+v", got); strings.Contains(text, "secret") || strings.Contains(text, "theirs") {
		t.Errorf("got %s", text)
	}
	if none := Visible(m, -1, false); len(none.Jobs) != 1 || none.Jobs[0].Path != "c" {
		t.Logf("a job of nobody knows whom is seen by nobody: %+v", none.Jobs)
	}
	if Visible(m, 7, true) != m {
		t.Error("root does not see all")
	}
}

// A user has a bounded number of connections, and takes none from others.
func TestConnections(t *testing.T) {
	l := &listener{users: map[int]int{}}
	for range maxConnsOfUser {
		if !l.admit(7) {
			t.Fatal("was not admitted")
		}
	}
	if l.admit(7) || !l.admit(8) || !l.admit(0) {
		t.Errorf("got %v", l.users)
	}
	l.leave(7)
	if !l.admit(7) || l.total != maxConnsOfUser+2 {
		t.Errorf("got %v, %d", l.users, l.total)
	}
}

// A client believes nobody but root and its own user, waits for nobody long, and there is one
// agent in a folder.
func TestClient(t *testing.T) {
	folder := testFolder(t)
	if _, err := Find(); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	holder(t, "train")
	a := startAgent(t, Options{})
	socket, release, err := Listen(folder)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listen(folder); !errors.Is(err, ErrRunning) {
		t.Errorf("got %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, socket) }()
	c, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Machine()
	if err != nil || len(m.Jobs) != 1 || m.Jobs[0].Name != "train" {
		t.Errorf("%+v, %v", m, err)
	}
	if h, err := c.History(); err != nil || len(h.Times) == 0 {
		t.Errorf("%+v, %v", h, err)
	}
	followed := make(chan machine.Event, 100)
	streamed := make(chan error, 1)
	go func() {
		streamed <- c.Events(context.Background(), true, func(e machine.Event) error { followed <- e; return nil })
	}()
	for e := range followed {
		if e.Kind == machine.RequestRefused {
			break
		}
	}
	holder(t, "other")
	for e := range followed {
		if e.Kind == machine.JobStarted && e.Job == "other" {
			break
		}
	}
	stop() // the stream ends, and the socket goes
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-streamed
	release()
	if _, err := Find(); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	// One that does not answer is given up.
	path := filepath.Join(folder, job.AgentSocket)
	silent, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	if _, err := NewClient(path).Machine(); err == nil {
		t.Error("something has answered")
	}
	if took := time.Since(begin); took > 10*answerTimeout {
		t.Errorf("took %v", took)
	}
	if os.Geteuid() == 0 { // another user's
		if err := os.Chown(path, 61000, 61000); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		if _, err := dial(path); !errors.Is(err, ErrNone) {
			t.Errorf("got %v", err)
		}
	}
}

// systemd is told, where it wants to know.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	Notify("READY=1")
	buf := make([]byte, 100)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// A job whose dead stay is tried again, and more and more rarely; a user's are one at a time.
func TestReaper(t *testing.T) {
	jobs := []machine.Job{{Name: "a", Path: "/a/region", UID: 7, Processes: []machine.Process{{State: machine.Dead}}}, {Name: "b", Path: "/b/region", UID: 7, Processes: []machine.Process{{State: machine.Dead}}},
		{Path: "/elsewhere", UID: 7, Processes: []machine.Process{{State: machine.Dead}}}, {Name: "c", Path: "/c/region", UID: 8, Processes: []machine.Process{{State: machine.Live}}}}
	done := make(chan []string, 10)
	r := newReaper(func(_ context.Context, paths []string, uid int) error { done <- paths; return nil }, func(string) {}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	r.reap(jobs)
	if got := <-done; len(got) != 2 || got[0] != "/a/region" || got[1] != "/b/region" {
		t.Errorf("got %v", got)
	}
	r.wait.Wait()
	for _, wait := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		if got := r.tried["/a/region"]; got.wait != wait {
			t.Fatalf("waits %v, want %v", got.wait, wait)
		}
		r.reap(jobs) // too early
		if len(done) != 0 {
			t.Fatal("it was tried too early")
		}
		for path, tr := range r.tried {
			tr.due = time.Time{}
			r.tried[path] = tr
		}
		clear(r.due)
		r.reap(jobs)
		<-done
		r.wait.Wait()
	}
	r.reap(jobs[2:]) // its dead have been returned
	if len(r.tried) != 0 {
		t.Errorf("got %v", r.tried)
	}
	r.close()
}

// FuzzParseInotify: what is read has the size that it says.
func FuzzParseInotify(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Add(make([]byte, 15))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range parseInotify(text) {
			if len(e.name) > len(text) {
				t.Errorf("%q", e.name)
			}
		}
	})
}
