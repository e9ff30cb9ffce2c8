package web

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/machine"
)

// site is a machine with a stand-in for two GPUs, on which real programs run.
type site struct {
	t      *testing.T
	folder string
	env    []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	root, err := filepath.Abs("../..")
	expect.OK(t, err)
	folder := t.TempDir()
	for _, name := range []string{"jobs", "bin"} {
		expect.OK(t, os.Mkdir(filepath.Join(folder, name), 0o700))
	}
	driver := filepath.Join(root, "build", "fakegpu")
	for name, at := range map[string]string{"ration": filepath.Join(root, "bin", "ration"), "fake-train": filepath.Join(driver, "fake-train"), "workload": filepath.Join(root, "build", "workload", "workload")} {
		_, err := os.Stat(at)
		expect.OK(t, err, "(run make first)")
		expect.OK(t, os.Symlink(at, filepath.Join(folder, "bin", name)))
	}
	s := &site{t: t, folder: folder}
	s.env = append(os.Environ(), "RATION_DIR="+filepath.Join(folder, "jobs"), "PATH="+filepath.Join(folder, "bin")+":"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+driver,
		"FAKEGPU=h200x2", "FAKEGPU_STATE="+filepath.Join(folder, "gpu"), "FAKEGPU_QUIET=1")
	return s
}

// command is a program of the site's that has been started.
type command struct {
	*exec.Cmd
	stdin  io.Closer
	output *output
	ended  bool
}

// output is what a program has written so far. It is read until its end, whether or not the test wants
// it: a program whose output nobody reads would wait, and one whose output is closed would be killed by
// its next line.
type output struct {
	mu    sync.Mutex
	lines []string      // under mu: the latest
	next  chan struct{} // under mu: closed when there is more, or no more
	ended bool          // under mu
}

// maxLines is how many lines are kept of a program.
const maxLines = 200

func (o *output) read(from io.ReadCloser) {
	defer from.Close()
	tell := func(line string, ended bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.ended = ended; !ended {
			o.lines = append(o.lines[max(0, len(o.lines)+1-maxLines):], line)
		}
		close(o.next)
		o.next = make(chan struct{})
	}
	for lines := bufio.NewReader(from); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			tell(strings.TrimSuffix(line, "\n"), false)
		}
		if err != nil {
			tell("", true)
			return
		}
	}
}

// said returns the lines so far, whether they have ended, and a channel that is closed when either changes.
func (o *output) said() (lines []string, ended bool, next <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.lines), o.ended, o.next
}

// start starts a program, and waits until it says something.
func (s *site) start(says string, args ...string) *command {
	s.t.Helper()
	c := s.begin(args...)
	for {
		said, ended, next := c.output.said()
		if slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, says) }) {
			return c
		}
		expect.Must(s.t, !ended, args, "did not say", says, said)
		<-next
	}
}

// begin starts a program, and keeps what it writes.
func (s *site) begin(args ...string) *command {
	s.t.Helper()
	c := &command{output: &output{next: make(chan struct{})}, Cmd: exec.Command("/bin/sh", append([]string{"-c", `exec "$@"`, "sh"}, args...)...)}
	c.Env = s.env
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	r, w, err := os.Pipe()
	expect.OK(s.t, err)
	c.Stdout, c.Stderr = w, w
	c.stdin, err = c.StdinPipe()
	expect.OK(s.t, err)
	expect.OK(s.t, c.Start())
	_ = w.Close()
	go c.output.read(r)
	s.t.Cleanup(c.end)
	return c
}

func (c *command) end() {
	if !c.ended {
		c.ended = true
		_ = c.Process.Signal(unix.SIGTERM)
		_ = c.stdin.Close()
		_ = c.Wait()
	}
}

func (c *command) kill() {
	c.ended = true
	_ = c.Process.Kill()
	_ = c.Wait()
}

// web starts ration web, and returns the address of its page.
func (s *site) web(args ...string) string {
	s.t.Helper()
	c := exec.Command(filepath.Join(s.folder, "bin", "ration"), append([]string{"web", "--json", "--listen", "127.0.0.1:0"}, args...)...)
	c.Env = s.env
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	expect.OK(s.t, err)
	s.t.Cleanup(func() {
		_ = c.Process.Signal(unix.SIGTERM)
		expect.Equal(s.t, c.Wait(), nil, "ration web ended with")
	})
	var page struct{ URL string }
	expect.OK(s.t, json.NewDecoder(out).Decode(&page))
	return page.URL
}

// processes returns the PIDs of a job's processes.
func (s *site) processes(name string) (pids []int) {
	s.t.Helper()
	c := exec.Command(filepath.Join(s.folder, "bin", "ration"), "ps", "--json", "--read-only", name)
	c.Env = s.env
	out, err := c.Output()
	var m machine.Machine
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	expect.OK(s.t, err)
	for _, p := range m.Jobs[0].Processes {
		pids = append(pids, p.HostPID)
	}
	return pids
}

// deathOf returns when the latest death in a job was written down.
func (s *site) deathOf(name string) time.Time {
	s.t.Helper()
	c := exec.Command(filepath.Join(s.folder, "bin", "ration"), "inspect", "--json", name)
	c.Env = s.env
	out, err := c.Output()
	var j machine.Job
	if err == nil {
		err = json.Unmarshal(out, &j)
	}
	expect.Must(s.t, err == nil && len(j.Deaths) != 0, err, out)
	return j.Deaths[0].Time
}

// The page shows what happens to real jobs, as it happens: with an agent, while it is killed,
// without one, and with the next.
func TestRealJobs(t *testing.T) {
	s := newSite(t)
	s.start("holding", "ration", "run", "--mem", "20g", "--name", "train", "--", "fake-train", "--hold", "12g", "10g")
	agent := s.start("msg=watching", "ration", "agent", "--listen", "none")
	b := open(t, s.web(), as(1280, 800, "light", false))
	b.isLive()
	b.shows("#gpu-0 .legend", "train")
	b.shows(`#jobs .job .amount`, "12.5 GiB of 20 GiB")
	b.shows("#events .refusal", "asked for 10 GiB with 7.49 GiB free of 20 GiB")
	b.wait(`document.querySelector("#chart-0 .area")`)

	s.start("holding", "ration", "run", "--mem", "9g", "--name", "other", "--", "sh", "-c", "fake-train --hold 2g & exec fake-train --hold 1g")
	b.shows("#jobs .job-name", "other")
	b.wait(jobSelector("other") + `?.querySelectorAll(".table-box:not(.now) tbody tr").length === 2`)
	victim := s.processes("other")[0]
	expect.OK(t, unix.Kill(victim, unix.SIGKILL))
	b.shows("#events .death", fmt.Sprintf("(pid %d) died holding", victim))
	b.shows("#jobs .job .tail", "1 died")

	// A process of no job.
	outside := s.start("holding", "fake-train", "--hold", "5g")
	b.shows("#findings", fmt.Sprintf("fake-train (pid %d) of user", outside.Process.Pid))
	b.shows("#outside td", fmt.Sprint(outside.Process.Pid))

	// The limit, by the form.
	b.get(jobSelector("other")+`.querySelector("details").open = true`, nil)
	field := "#" + b.text(jobSelector("other")+".id") + " [name=memory]"
	b.run(chromedp.SendKeys(field, "1k\r"))
	b.shows("output.failed", "1k")
	b.run(chromedp.SetValue(field, "7g"), chromedp.SendKeys(field, "\r"))
	b.shows("output", "the limit is 7 GiB now; it was 9 GiB")
	b.shows("#jobs .job .amount", "of 7 GiB")

	// Without an agent, and with the next.
	agent.kill()
	b.shows("#top", "No agent runs")
	s.start("holding", "ration", "run", "--mem", "3g", "--name", "third", "--", "fake-train", "--hold", "1g")
	b.shows("#jobs .job-name", "third")
	next := s.start("msg=watching", "ration", "agent", "--listen", "none")
	b.wait(`!document.querySelector("#top").textContent.includes("No agent runs")`)
	next.end()
	b.shows("#top", "No agent runs")
	b.wait(`document.querySelector("#live.on")`)
}

// The page at the agent's port goes on when the agent was killed and started again, and has no job
// in it.
func TestPublicPage(t *testing.T) {
	s := newSite(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.OK(t, err)
	address := l.Addr().String()
	_ = l.Close()
	agent := s.start("msg=watching", "ration", "agent", "--listen", address)
	b := open(t, "http://"+address+"/", as(390, 844, "dark", false))
	b.isLive()
	b.shows("#gpu-1", "nothing handed out")
	agent.kill()
	b.wait(`document.querySelector("#live.off")`)
	s.start("holding", "ration", "run", "--mem", "20g", "--name", "secretjob", "--", "fake-train", "--hold", "12g", "10g")
	s.start("msg=watching", "ration", "agent", "--listen", address)
	b.isLive()
	b.shows("#gpu-0", "20 GiB handed out to 1 job")
	b.shows("#gpu-0 .use", "13.1 of ")
	text := b.text("document.documentElement.outerHTML")
	expect.True(t, !strings.Contains(text, "secretjob") && !strings.Contains(text, "fake-train"), "there are names of jobs and programs")
}

var load = flag.String("load", "8x2", "`JOBSxPROCESSES` of TestUpdateTime")

// TestUpdateTime measures how long after a process was killed the page of a machine under load
// shows its death. It asserts that each is shown, and only says how long it took.
func TestUpdateTime(t *testing.T) {
	var jobs, processes int
	_, err := fmt.Sscanf(*load, "%dx%d", &jobs, &processes)
	expect.OK(t, err)
	s := newSite(t)
	job := filepath.Join(s.folder, "job")
	// Programs that have a context and 1 MiB, until their input ends.
	script := "#!/bin/sh\nexec 3<&0\nfor i in $(seq " + fmt.Sprint(processes) + "); do { { printf 'init\\nalloc 1048576\\n'; cat <&3; } | workload; echo " + endedWith + "$?; } & done\nwait\n"
	expect.OK(t, os.WriteFile(job, []byte(script), 0o700))
	all := make([]*command, jobs)
	for n := range jobs { // each with a machine of its own, so that all of them find room
		all[n] = s.begin("ration", "run", "--fake-gpu", "small:80g", "--mem", "8g", "--name", fmt.Sprintf("job-%d", n), "--", job)
	}
	s.start("msg=watching", "ration", "agent", "--listen", "none")
	b := open(t, s.web(), as(1280, 800, "light", false))
	b.isLive()
	for _, c := range all {
		c.awaitAnswers(t, 2*processes)
	}
	b.waitLong(fmt.Sprintf(`document.querySelector(".figures").textContent.includes(%q)`, "processes"+count(jobs*processes)))
	var written, took, after []time.Duration // until what was held went back to the job; until it was shown, since the kill and since that
	for n := range min(jobs, 20) {
		name := fmt.Sprintf("job-%d", n)
		victim := s.processes(name)[0]
		b.get(fmt.Sprintf(`window.shown = new Promise(done => new MutationObserver((_, o) => {
			if (![...document.querySelectorAll("#events .death")].some(e => e.textContent.includes("pid %d"))) return;
			o.disconnect();
			requestAnimationFrame(() => done(performance.timeOrigin + performance.now())); // it is painted with this frame
		}).observe(document.getElementById("events"), { childList: true, subtree: true, characterData: true })); 0`, victim), nil)
		at := time.Now()
		expect.OK(t, unix.Kill(victim, unix.SIGKILL))
		b.shows("#events .death", fmt.Sprintf("pid %d", victim))
		var shown float64
		b.run(chromedp.Evaluate("window.shown", &shown, awaited))
		took = append(took, time.Duration(shown*1e6)-time.Duration(at.UnixNano()))
		death := s.deathOf(name)
		written, after = append(written, death.Sub(at)), append(after, time.Duration(shown*1e6)-time.Duration(death.UnixNano()))
	}
	for _, figure := range []struct {
		what string
		all  []time.Duration
	}{{"written down after a kill", written}, {"shown after a kill", took}, {"shown after the death was written down", after}} {
		slices.Sort(figure.all)
		t.Logf("%s: %s: median %v, longest %v", *load, figure.what, figure.all[len(figure.all)/2].Round(time.Millisecond), figure.all[len(figure.all)-1].Round(time.Millisecond))
	}
}

// endedWith begins the line that says how a program of TestUpdateTime has ended.
const endedWith = "ended with "

// awaitAnswers waits until the programs of a job have said so many times that something was done. Where
// one says anything else, or ends, the test fails with what they said.
func (c *command) awaitAnswers(t *testing.T, want int) {
	t.Helper()
	late := time.After(10 * timeout)
	for {
		said, ended, next := c.output.said()
		done := 0
		for _, line := range said {
			if strings.HasPrefix(line, "ok ") {
				done++
			}
		}
		expect.Must(t, !ended && done == len(said), c.Args[4:], strings.Join(said, "\n"))
		if done == want {
			return
		}
		select {
		case <-next:
		case <-late:
			t.Fatalf("%q: %d answers of %d: %s", c.Args[4:], done, want, strings.Join(said, "\n"))
		}
	}
}

// count is a number as the page writes it.
func count(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
