package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// listenAt listens at an agent's socket as systemd does, and returns it with its path.
func listenAt(t *testing.T, folder string) (*os.File, string) {
	t.Helper()
	path := filepath.Join(folder, job.AgentSocket)
	l := opened(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	return opened(l.File())(t), path
}

// opened returns what was opened, and closes it when the test has ended.
func opened[C io.Closer](c C, err error) func(t *testing.T) C {
	return func(t *testing.T) C {
		t.Helper()
		expect.OK(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// noAddress ends an agent that should have ended before.
const noAddress = "300.0.0.1:1"

// passedAgent is ration agent, to which sockets are passed as systemd does it.
func passedAgent(folder, listen string, sockets ...*os.File) *exec.Cmd {
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec ration agent --listen "$0"`, listen)
	cmd.Env = append(append(os.Environ(), environ(folder)...), fmt.Sprint("LISTEN_FDS=", len(sockets)))
	cmd.ExtraFiles = sockets
	return cmd
}

// startPassed starts one. end asks it to end, and waits for that.
func startPassed(t *testing.T, folder string, socket *os.File) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = passedAgent(folder, "none", socket)
	cmd.Stderr = os.Stderr
	expect.OK(t, cmd.Start())
	end = sync.OnceFunc(func() {
		expect.Equal(t, errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()), nil, "the agent")
	})
	t.Cleanup(end)
	return cmd, end
}

// question is one that has been asked, however long the answer takes.
type question struct {
	t *testing.T
	net.Conn
}

func ask(t *testing.T, path string) question {
	t.Helper()
	c := opened(net.Dial("unix", path))(t)
	_, err := io.WriteString(c, "GET /v1/machine HTTP/1.0\r\n\r\n")
	expect.OK(t, err)
	return question{t, c}
}

// wantTrain checks that the answer has the job.
func (q question) wantTrain() {
	q.t.Helper()
	answer, err := http.ReadResponse(bufio.NewReader(q), nil)
	expect.OK(q.t, err)
	defer answer.Body.Close()
	var m machine.Machine
	err = json.NewDecoder(answer.Body).Decode(&m)
	expect.True(q.t, err == nil && len(m.Jobs) == 1 && m.Jobs[0].Name == "train", m, err)
}

// An agent takes the socket that systemd listens on, answers who has asked before it was there, when it
// has looked, and leaves the socket to the next one.
func TestAgentTakesPassedSocket(t *testing.T) {
	folder := agentFolder(t)
	socket, path := listenAt(t, folder)
	before, err := os.Lstat(path)
	expect.OK(t, err)
	for range 2 {
		early := ask(t, path)
		cmd, end := startPassed(t, folder, socket)
		early.wantTrain()
		ask(t, path).wantTrain()
		wantNoneInherited(t, cmd.Process.Pid)
		// There is one in a folder, whoever listens.
		out, err := passedAgent(folder, noAddress, socket).CombinedOutput()
		expect.True(t, err != nil && strings.Contains(string(out), "an agent is running already"), "a second agent", err, out)
		end()
		now, err := os.Lstat(path)
		expect.Must(t, err == nil && os.SameFile(before, now), "the agent has removed a socket that is not its own", err)
	}
	// One that is started by hand does not take the place of the one that systemd would start.
	cmd := exec.Command("ration", "agent", "--listen", noAddress)
	cmd.Env = append(os.Environ(), environ(folder)...)
	out, err := cmd.CombinedOutput()
	expect.True(t, err != nil && strings.Contains(string(out), "systemctl start ration-agent"),
		"an agent beside systemd's socket", err, out)
	now, err := os.Lstat(path)
	expect.True(t, err == nil && os.SameFile(before, now), "it has removed the socket", err)
}

// wantNoneInherited checks that children of a process get no socket of it.
func wantNoneInherited(t *testing.T, pid int) {
	t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(fds)
	expect.OK(t, err)
	for _, e := range entries {
		to, _ := os.Readlink(filepath.Join(fds, e.Name()))
		if !strings.HasPrefix(to, "socket:") {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
		if err != nil {
			continue // of a question that has been answered
		}
		var flags int
		_, text, _ := strings.Cut(string(info), "flags:")
		_, err = fmt.Sscanf(text, "%o", &flags)
		expect.True(t, err == nil && flags&unix.O_CLOEXEC != 0, "children get socket", e.Name(), err, info)
	}
}

// What is passed and is not the agent's socket is refused, and named.
func TestAgentRefusesPassedSocket(t *testing.T) {
	folder := agentFolder(t)
	right, path := listenAt(t, folder)
	other := opened(net.Listen("unix", filepath.Join(folder, "other.sock")))(t)
	tcp := opened(net.Listen("tcp", "127.0.0.1:0"))(t)
	datagrams := opened(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(folder, "datagrams.sock"), Net: "unixgram"}))(t)
	connected := opened(net.Dial("unix", path))(t)
	file := opened(os.Open(os.DevNull))(t)
	for want, sockets := range map[string][]*os.File{
		"the agent takes one socket": {right, right},
		`other.sock"`:                {opened(other.(*net.UnixListener).File())(t)},
		"it is not a Unix socket":    {opened(tcp.(*net.TCPListener).File())(t)},
		"it is not a stream":         {opened(datagrams.File())(t)},
		"it does not listen":         {opened(connected.(*net.UnixConn).File())(t)},
		"socket operation on":        {file},
	} {
		out, err := passedAgent(folder, noAddress, sockets...).CombinedOutput()
		expect.True(t, err != nil && strings.Contains(string(out), "taking the socket from systemd") && strings.Contains(string(out), want),
			want, err, out)
	}
}

// Commands go on without an agent that systemd listens for and that does not come, and say so.
func TestAgentDoesNotCome(t *testing.T) {
	folder := agentFolder(t)
	questions := [][]string{{"ps", "--format", "{{.Name}} {{.State}}"}, {"limit", "train"}, {"limit", "train", "10g"}, {"why"}, {"events"}}
	alone := make([]string, len(questions))
	for i, args := range questions {
		alone[i] = runIn(t, folder, args...)
	}
	listenAt(t, folder)
	var all sync.WaitGroup
	for i, args := range questions {
		all.Go(func() {
			got := runIn(t, folder, args...)
			if first, rest, _ := strings.Cut(got, "\n"); strings.Contains(first, "the agent does not answer") {
				got = rest
			}
			expect.Equal(t, got, alone[i], args, "and where nobody listens")
		})
	}
	all.Wait()
}
