package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
)

// testReader is the user and the group of the reader in tests.
const testReader = 65533

func readerOfTests() (uid, gid uint32, err error) { return testReader, testReader, nil }

func noReader() (uid, gid uint32, err error) {
	return 0, 0, errors.New("there is no user for tests (make one)")
}

// rootsAgent is root's agent in a mount namespace with a /run of its own.
type rootsAgent struct {
	t      *testing.T
	cmd    *exec.Cmd
	told   *net.UnixConn // what it tells systemd
	stderr output
}

// output is what a process writes, which a test reads meanwhile.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// asUnit begins a command with what the agent's unit leaves it.
var asUnit = []string{"setpriv", "--bounding-set=-all,+dac_read_search,+sys_ptrace,+setuid,+setgid,+kill", "--no-new-privs"}

// startRootsAgent starts one, and waits until it has looked.
func startRootsAgent(t *testing.T, command ...string) *rootsAgent {
	t.Helper()
	if os.Geteuid() != 0 || !mayMount() {
		t.Skip("needs another user, and a mount")
	}
	a := &rootsAgent{t: t}
	at := fmt.Sprintf("@ration-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var err error
	a.told, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	expect.OK(t, err)
	t.Cleanup(func() { _ = a.told.Close() })
	raw, err := a.told.SyscallConn()
	expect.OK(t, err)
	expect.OK(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }))
	const script = `mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 755 /run/ration && mount -t tmpfs -o mode=755 tmpfs /var/lib && exec "$@"`
	a.cmd = exec.Command("sh", append([]string{"-c", script, "sh"}, command...)...)
	a.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+at, "RATION_DIR=")
	a.cmd.Stderr, a.cmd.WaitDelay = &a.stderr, time.Minute
	// Root is in groups, which the reader must not be.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Credential: &syscall.Credential{Groups: []uint32{0, 6, 65532}}}
	expect.OK(t, a.cmd.Start())
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_, _ = a.cmd.Process.Kill(), a.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s", a.stderr.String())
		}
	})
	a.wantTold("READY=1")
	return a
}

// wantTold waits for what the agent tells systemd, which listens to its main process only.
func (a *rootsAgent) wantTold(want string) {
	a.t.Helper()
	_ = a.told.SetReadDeadline(time.Now().Add(time.Minute))
	text, oob := make([]byte, 100), make([]byte, 100)
	n, noob, _, _, err := a.told.ReadMsgUnix(text, oob)
	expect.OK(a.t, err, "waiting for", want, a.stderr.String())
	messages, err := unix.ParseSocketControlMessage(oob[:noob])
	expect.Must(a.t, err == nil && len(messages) == 1, messages, err)
	from, err := unix.ParseUnixCredentials(&messages[0])
	expect.True(a.t, err == nil && string(text[:n]) == want && int(from.Pid) == a.cmd.Process.Pid,
		"process", from, "tells", text[:n], err, want, "of", a.cmd.Process.Pid)
}

// children returns the processes that the agent has started.
func (a *rootsAgent) children() (pids []int) {
	a.t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", a.cmd.Process.Pid))
	expect.OK(a.t, err)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		expect.OK(a.t, err)
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			expect.OK(a.t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// reader returns the PID of the reader, and a descriptor by which its end can be waited for.
func (a *rootsAgent) reader() (pid, fd int) {
	a.t.Helper()
	all := a.children()
	expect.Must(a.t, len(all) == 1, "the agent has started", all, "want one reader")
	fd, err := unix.PidfdOpen(all[0], 0)
	expect.OK(a.t, err)
	a.t.Cleanup(func() { _ = unix.Close(fd) })
	return all[0], fd
}

// wantEnded waits for the end of a process.
func wantEnded(t *testing.T, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			t.Errorf("the reader goes on: %d, %v", n, err)
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		return
	}
}

// The reader of root's agent is of another user, in no other group, has one capability, in all threads, can get
// no others, and tells systemd nothing itself; with all that root has, and with what the unit leaves.
func TestReaderHasOneCapability(t *testing.T) {
	for name, test := range map[string]struct {
		command []string
		bounds  string
		folder  bool // the agent can make the reader's own
	}{
		"root": {[]string{"split", "agent", "--listen", "none"}, "0000000000000004", true},
		"unit": {append(asUnit[:len(asUnit):len(asUnit)], "split", "agent", "--listen", "none"), "00000000000800e4", false}, // systemd's, which needs CAP_SETPCAP to be less
	} {
		t.Run(name, func(t *testing.T) {
			a := startRootsAgent(t, test.command...)
			pid, _ := a.reader()
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			expect.Must(t, err == nil && len(threads) >= 2, pid, "has threads", threads, err)
			for _, thread := range threads {
				status, err := os.ReadFile(thread)
				if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
					continue // it has ended
				}
				expect.OK(t, err)
				for _, line := range []string{"Uid:\t65533\t65533\t65533\t65533", "Gid:\t65533\t65533\t65533\t65533", "Groups:\t", "CapInh:\t0000000000000004", "CapPrm:\t0000000000000004",
					"CapEff:\t0000000000000004", "CapAmb:\t0000000000000004", "CapBnd:\t" + test.bounds, "NoNewPrivs:\t1", "Seccomp:\t2"} {
					expect.True(t, regexp.MustCompile(`(?m)^`+line+` *$`).Match(status), "no line", line, thread, status)
				}
			}
			var st unix.Stat_t
			err = unix.Stat(fmt.Sprintf("/proc/%d/root/run/ration-agent", pid), &st)
			expect.True(t, (!test.folder || err == nil && st.Uid == testReader && st.Gid == testReader && st.Mode&0o777 == 0o700) && (test.folder || err == unix.ENOENT),
				"the reader's folder", st, err)
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			expect.True(t, err == nil && len(environ) != 0 && !strings.Contains(string(environ), "NOTIFY_SOCKET"),
				"the reader's environment", environ, err)
			wantNoneInherited(t, pid)
			session, err := unix.Getsid(pid)
			expect.True(t, err == nil && session == pid, "the reader is in session", session, err, "and can type into root's terminal")
			// While it runs no other agent does, also where its parent was killed.
			lock, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/5", pid))
			expect.True(t, err == nil && lock == "/run/ration/agent.lock", "the reader has", lock, "open", err)
		})
	}
}

// However one of the two is ended, the other ends, too, with the status that tells systemd whether to start it
// again, and a next agent can begin at once.
func TestAgentEndsAsOne(t *testing.T) {
	for name, test := range map[string]struct {
		stop   bool // the reader first: it can do nothing itself
		reader bool // it gets the signal, and the parent does not
		signal syscall.Signal
		status int
	}{
		"SIGTERM":                              {signal: syscall.SIGTERM},
		"SIGINT":                               {signal: syscall.SIGINT},
		"SIGKILL":                              {signal: syscall.SIGKILL, status: -1},
		"SIGKILL, while the reader is stopped": {stop: true, signal: syscall.SIGKILL, status: -1},
		"SIGTERM to the reader":                {reader: true, signal: syscall.SIGTERM},
		"SIGKILL to the reader":                {reader: true, signal: syscall.SIGKILL, status: 137},
		"SIGSEGV to the reader":                {reader: true, signal: syscall.SIGSEGV, status: 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := startRootsAgent(t, "split", "agent", "--listen", "none")
			reader, fd := a.reader()
			run := fmt.Sprintf("/proc/%d/root/run/ration", a.cmd.Process.Pid)
			folder, err := unix.Open(run, unix.O_PATH, 0) // of its namespace, which goes with the last of it
			expect.OK(t, err)
			defer unix.Close(folder)
			if test.stop {
				expect.OK(t, unix.Kill(reader, unix.SIGSTOP))
			}
			to := a.cmd.Process.Pid
			if test.reader {
				to = reader
			}
			expect.OK(t, unix.Kill(to, test.signal))
			if test.stop { // the kernel signals a parent's end before that end can be waited for
				_ = a.cmd.Wait()
				if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", reader)); strings.Contains(string(stat), ") T ") {
					t.Error("the reader is still stopped, and does not end with its parent")
					_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				}
			}
			if wantEnded(t, fd); test.signal != syscall.SIGKILL || test.reader {
				a.wantTold("STOPPING=1")
			}
			_ = a.cmd.Wait()
			expect.Equal(t, a.cmd.ProcessState.ExitCode(), test.status, "the agent ended with")
			lock, err := unix.Openat(folder, "agent.lock", unix.O_RDWR, 0)
			expect.OK(t, err)
			defer unix.Close(lock)
			expect.Equal(t, unix.FcntlFlock(uintptr(lock), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}), nil,
				"the folder is locked")
			var st unix.Stat_t
			err = unix.Fstatat(folder, "agent.sock", &st, 0)
			expect.True(t, test.status == -1 || err == unix.ENOENT, "the socket is left", err)
		})
	}
}

// Without a user for the reader the agent is one process, of root's, and says so once.
func TestAgentWithoutUser(t *testing.T) {
	a := startRootsAgent(t, "whole", "agent", "--listen", "none")
	all := a.children()
	expect.Equal(t, len(all), 0, "it has started", all)
	expect.OK(t, a.cmd.Process.Signal(syscall.SIGTERM))
	a.wantTold("STOPPING=1")
	expect.Equal(t, a.cmd.Wait(), nil)
	const want = `level=WARN msg="files of users are read as root" error="the agent is one process: there is no user for tests (make one)"`
	n := 0 // but events, as a death in a job of another test
	for line := range strings.Lines(a.stderr.String()) {
		if strings.Contains(line, "level=WARN") && !strings.Contains(line, " event=") {
			n++
		}
	}
	expect.True(t, n == 1 && strings.Contains(a.stderr.String(), want), n, "warnings, want", want, a.stderr.String())
}

// A reader that cannot begin says why, once, and its status is the agent's.
func TestReaderCannotBegin(t *testing.T) {
	if os.Geteuid() != 0 || !mayMount() {
		t.Skip("needs another user, and a mount")
	}
	cmd := exec.Command("sh", "-c", `mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs -o mode=755 tmpfs /var/lib && exec split agent --listen 300.0.0.1:1`)
	cmd.Env = append(os.Environ(), "RATION_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	expect.True(t, errors.As(err, &exit) && exit.ExitCode() == ExitFailed && strings.Count(string(out), "ration: serving metrics: ") == 1,
		err, out)
}

// The reader is in the group that may use the driver, where not everybody may; never in root's.
func TestDriverGroups(t *testing.T) {
	testenv.NeedsRoot(t, "needs another group")
	device := filepath.Join(t.TempDir(), "nvidiactl")
	if got := driverGroups(device); got != nil {
		t.Errorf("without a driver: %d", got)
	}
	expect.OK(t, os.WriteFile(device, nil, 0o600))
	for _, test := range []struct {
		mode os.FileMode
		gid  int
		want []uint32
	}{
		{0o666, 44, nil}, {0o660, 44, []uint32{44}}, {0o664, 44, []uint32{44}}, {0o640, 44, nil}, {0o600, 44, nil}, {0o660, 0, nil},
	} {
		expect.OK(t, errors.Join(os.Chown(device, 0, test.gid), os.Chmod(device, test.mode)))
		if got := driverGroups(device); !slices.Equal(got, test.want) {
			t.Errorf("%o of group %d: got %d, want %d", test.mode, test.gid, got, test.want)
		}
	}
}

// Where /proc hides processes, the reader is in the group that sees them; never in root's.
func TestProcGroups(t *testing.T) {
	for options, want := range map[string][]uint32{
		"rw,nosuid": nil, "rw,gid=44,hidepid=invisible": {44}, "rw,hidepid=2,gid=44": {44}, "rw,hidepid=2": nil, "rw,gid=0,hidepid=2": nil, "rw,gid=44": nil,
	} {
		mounts := filepath.Join(t.TempDir(), "mounts")
		expect.OK(t, os.WriteFile(mounts, []byte("sysfs /sys sysfs rw,gid=9,hidepid=2 0 0\nproc /proc proc "+options+" 0 0\n"), 0o600))
		got := procGroups(mounts)
		expect.True(t, slices.Equal(got, want), options, got, "want", want)
	}
}
