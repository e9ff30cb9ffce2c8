package cli

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/job"
	"ration/internal/usage"
	"ration/machine"
)

// agentFolder is a folder of jobs with one that runs.
func agentFolder(t *testing.T) string {
	t.Helper()
	folder := jobsFolder(t)
	startJob(t, folder, "train", []string{"10g", "518m", "1g", "rank-0"})
	return folder
}

// startAgent starts an agent in a folder, and returns when it has looked.
func startAgent(t *testing.T, folder string) *exec.Cmd {
	t.Helper()
	return startUntil(t, "watching", environ(folder), "ration", "agent", "--listen", "none")
}

// The history in ration top begins with what an agent has kept: this one reads a single sample, which
// alone is no history.
func TestTopHistoryOfAgent(t *testing.T) {
	folder := agentFolder(t)
	startAgent(t, folder)
	s := onTerminal(t, 80, 24, environ(folder), "ration", "top", "--interval", "1h")
	s.shows(`1 job, 1 process`)
	s.press("\r")
	s.shows(`memory +[▁▂]+ to 10 GiB, last \d+`)
	s.press("q")
}

// serveAgent answers on the agent's socket of a folder.
func serveAgent(t *testing.T, folder string, handler http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(folder, job.AgentSocket))
	expect.OK(t, err)
	server := &http.Server{Handler: handler}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
}

// runIn runs ration in a folder of jobs, and returns what it prints.
func runIn(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.Command("ration", args...)
	cmd.Env = append(os.Environ(), environ(folder)...)
	out, err := cmd.CombinedOutput()
	expect.Equal(t, err, nil, "ration", strings.Join(args, " "), out)
	return string(out)
}

// Commands and agents of different versions understand each other: a field that one does not know is
// left out, and an answer that is none is as no agent.
func TestAgentOfAnotherVersion(t *testing.T) {
	folder := agentFolder(t)
	alone := runIn(t, folder, "ps")
	expect.Must(t, strings.Contains(alone, "train  running"), alone)
	if strings.Contains(alone, "GPU ") {
		t.Skip("this machine has a driver, whose devices are shown instead of the agent's")
	}
	for name, answer := range map[string]http.HandlerFunc{
		"earlier, without the question": http.NotFound,
		"garbage":                       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"devices": "none`) },
		"another kind":                  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"devices": {"a": 1}, "jobs": 7}`) },
		"fails":                         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			serveAgent(t, folder, answer)
			for _, args := range [][]string{{"ps"}, {"why"}, {"limit", "train"}, {"limit", "train", "10g"}, {"events"}} {
				if out := runIn(t, folder, args...); strings.Contains(out, "agent") || strings.Contains(out, "GPU") || !strings.Contains(out, "train") && args[0] != "why" {
					t.Errorf("%v: got\n%s", args, out)
				}
			}
		})
	}
	t.Run("later", func(t *testing.T) {
		serveAgent(t, folder, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/machine" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprintf(w, `{"new": {"field": 1}, "devices": [{"device": 0, "uuid": "GPU-x", "name": "stand-in", "new": true, "total": %d, "rations": %d, "rationed_jobs": 3}],
				"jobs": [], "findings": [{"kind": %q, "device": 0, "text": "device 0 is overbooked", "remedy": "wait"}, {"kind": "new"}]}`, 20<<30, 30<<30, machine.Overbooked)
		})
		out := runIn(t, folder, "ps")
		for _, want := range []string{"GPU 0  stand-in  0 B of 20 GiB used, 30 GiB handed out to 3 jobs", "! device 0 is overbooked (wait)", "train  running"} {
			expect.True(t, strings.Contains(out, want), "no", want, out)
		}
		s := onTerminal(t, 80, 24, environ(folder), "ration", "top")
		s.shows(`! device 0 is overbooked`)
		s.shows(`0  stand-in +\S* +0 +20G +! 30G`)
		s.press("q")
	})
}

// silentAgent is an agent of a folder that answers with a text, and then says nothing more.
func silentAgent(t *testing.T, folder, answer string) {
	t.Helper()
	testenv.SilentServer(t, filepath.Join(folder, job.AgentSocket), answer)
}

const halfAnswer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"

// No command waits for an agent that does not answer: it does what it does without one, and says so where
// something is missing. The agent holds each connection until the command has ended.
func TestSilentAgent(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, folder string){
		"stopped":        func(t *testing.T, folder string) { expect.OK(t, startAgent(t, folder).Process.Signal(unix.SIGSTOP)) },
		"nothing":        func(t *testing.T, folder string) { silentAgent(t, folder, "") },
		"half a header":  func(t *testing.T, folder string) { silentAgent(t, folder, halfAnswer[:20]) },
		"half an answer": func(t *testing.T, folder string) { silentAgent(t, folder, halfAnswer) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := agentFolder(t)
			hang(t, folder)
			for _, c := range []struct {
				args []string
				says bool
			}{
				{[]string{"ps"}, true}, {[]string{"why"}, true}, {[]string{"why", "train"}, true}, {[]string{"events"}, true},
				{[]string{"limit", "train"}, false}, {[]string{"limit", "train", "10g"}, true}, {[]string{"metrics"}, true},
			} {
				out := runIn(t, folder, c.args...)
				expect.True(t, strings.Count(out, "the agent does not answer") == map[bool]int{true: 1}[c.says] && (strings.Contains(out, "train") || c.args[0] == "why"),
					c.args, "got", out)
			}
			page := startWeb(t, folder, "ration")
			_, text, _ := getPage(t, page)
			expect.True(t, strings.Contains(text, "train") && strings.Contains(text, "The agent does not answer"), "the page is", text)
			_, err := os.Lstat(filepath.Join(folder, job.AgentJournal))
			expect.True(t, name == "stopped" || err != nil, "a page has written what was told: it has no log")
		})
	}
}

// ration report waits for an agent that is slow to answer and has the accounts open: nothing else can read them.
func TestReportOfSlowAgent(t *testing.T) {
	t.Parallel()
	folder := jobsFolder(t)
	accounts, err := usage.Open(filepath.Join(folder, job.UsageFile))
	expect.OK(t, err)
	defer accounts.Close()
	var asked atomic.Int32
	serveAgent(t, folder, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done() // when the command has given up
			return
		}
		fmt.Fprint(w, `{"by": "user", "lines": [{"user": "ada"}]}`)
	})
	out := runIn(t, folder, "report", "--csv")
	expect.True(t, strings.Contains(out, "\nada,"), out)
}

// Who follows an agent that falls silent is told so, and goes on without it.
func TestSilentStream(t *testing.T) {
	slow(t)
	t.Parallel()
	folder := agentFolder(t)
	line := `{"kind": "end", "path": "/gone", "job": "gone", "text": "job gone has ended"}` + "\n"
	silentAgent(t, folder, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line))
	_, lines := start(t, environ(folder), "ration", "events", "--follow", "--since", "all")
	for _, want := range []string{"job gone has ended", "the agent does not answer: this command reads the jobs every second instead", "job train of "} {
		expect.Must(t, lines.Scan() && strings.Contains(lines.Text(), want), lines.Text(), want)
	}
}
