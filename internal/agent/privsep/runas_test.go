package privsep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// A command of another user has that user's rights only, no environment of ours, and a session of its own.
func TestRunAsRights(t *testing.T) {
	t.Setenv("SECRET", "of-root")
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // not closed by exec, as one that a shell has left open
	expect.Must(t, err == nil, err)
	defer unix.Close(fd)
	script := `read line; echo "in=$line secret=$SECRET uid=$(id -u) groups=$(id -G) fds=$(ls /proc/$$/fd | tr '\n' ' ') session=$(($(cut -d' ' -f6 /proc/$$/stat) == $$)) caps=$(grep CapEff /proc/$$/status | tr -d '\t')"; exit 3`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdin = strings.NewReader("hello\n")
	err = RunAs(context.Background(), cmd, 65534, 65534)
	expect.Must(t, err != nil)
	text := err.Error()
	want := []string{"exit status 3: in=hello secret= ", "session=1"}
	if os.Geteuid() == 0 {
		want = append(want, "uid=65534 groups=65534 ", "caps=CapEff:0000000000000000")
	}
	for _, part := range want {
		expect.True(t, strings.Contains(text, part), text, part)
	}
	// The shell has opened its own folder.
	expect.True(t, !strings.Contains(text, fmt.Sprintf(" %d ", fd)), text)
}

// A command that its user stops is killed.
func TestRunAsStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := RunAs(ctx, exec.Command("/bin/sh", "-c", "kill -STOP $$; sleep 100"), 65534, 65534)
	expect.True(t, errors.Is(err, ErrStopped) && ctx.Err() == nil, err)
}

// Processes that a command leaves behind end with it, and a command that does not end is killed.
func TestRunAsEnds(t *testing.T) {
	for _, script := range []string{"sleep 100 & echo $! >%s", "sleep 100 & echo $! >%s; sleep 100"} {
		dir := t.TempDir()
		expect.Must(t, os.Chmod(dir, 0o777) == nil && os.Chmod(filepath.Dir(dir), 0o755) == nil)
		file := filepath.Join(dir, "pid")
		expect.Must(t, os.WriteFile(file, nil, 0o666) == nil && os.Chmod(file, 0o666) == nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if strings.HasSuffix(script, "; sleep 100") {
			go func() {
				for text := []byte(nil); len(text) == 0 && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
					text, _ = os.ReadFile(file)
				}
				cancel()
			}()
		}
		err := RunAs(ctx, exec.Command("/bin/sh", "-c", fmt.Sprintf(script, file)), 0, 0)
		expect.True(t, (err == nil) == (ctx.Err() == nil) || errors.Is(err, exec.ErrWaitDelay), err)
		cancel()
		text, err := os.ReadFile(file)
		expect.Must(t, err == nil, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		expect.Must(t, err == nil, string(text))
		for end := time.Now().Add(time.Minute); unix.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(10 * time.Millisecond) {
			expect.Must(t, time.Now().Before(end), "the child is left behind", script)
		}
	}
}

// traced runs a command by RunAs, and has another process of its user trace it, which then keeps its end from being seen.
func traced(t *testing.T, uid uint32) (release func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pid, writer, err := os.Pipe()
	expect.OK(t, err)
	cmd := exec.Command("/bin/sh", "-c", "echo $$; exec sleep 100")
	cmd.Stdout = struct{ io.Writer }{writer}
	ended := make(chan error, 1)
	go func() { ended <- RunAs(ctx, cmd, uid, 65534) }()
	line, err := bufio.NewReader(pid).ReadString('\n')
	expect.OK(t, err)
	tracer := exec.Command("/proc/self/exe")
	tracer.Args = []string{"probe", "trace", strings.TrimSpace(line)}
	tracer.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534}}
	_, err = tracer.StdinPipe() // it ends with this process
	expect.OK(t, err)
	out, err := tracer.StdoutPipe()
	expect.Must(t, err == nil && tracer.Start() == nil, err)
	release = sync.OnceFunc(func() { _, _ = tracer.Process.Kill(), tracer.Wait() })
	t.Cleanup(release)
	if said, _ := bufio.NewReader(out).ReadString('\n'); said != "traces\n" {
		t.Skip("users cannot trace their processes here: ", said)
	}
	cancel()
	select {
	case err = <-ended:
	case <-time.After(20 * time.Second):
		err = errors.New("it waits for a process that does not end")
	}
	return release, err
}

// A user who keeps a command from ending, here by tracing it, does not make RunAs wait, and gets a bounded number of such
// processes. Other users do not notice.
func TestRunAsUnended(t *testing.T) {
	testenv.NeedsRoot(t, "needs a process of another user")
	defer func(was time.Duration) { unendedAfter = was }(unendedAfter)
	unendedAfter = 10 * time.Millisecond
	const eve, ada = 65532, 65534
	try := func(uid uint32) error {
		return RunAs(context.Background(), exec.Command("/bin/true"), uid, 65534)
	}
	var releases []func()
	for range maxUnended {
		release, err := traced(t, eve)
		expect.Must(t, errors.Is(err, ErrUnended) && errors.Is(err, context.Canceled), err)
		releases = append(releases, release)
	}
	expect.True(t, errors.Is(try(eve), ErrUnended), "one more is started")
	expect.True(t, errors.Is(RunFor(context.Background(), exec.Command("/bin/true"), eve), ErrUnended), "one more is started that would become the user's")
	expect.OK(t, try(ada))
	for _, release := range releases {
		release()
	}
	for end := time.Now().Add(time.Minute); addUnended(eve, 0) > 0; time.Sleep(10 * time.Millisecond) {
		expect.Must(t, time.Now().Before(end), "processes that have ended still count")
	}
	unendedAfter = time.Minute
	expect.OK(t, try(eve))
}

// zombie reports whether a process has ended and nobody has waited for it.
func zombie(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return len(text) == 0 || strings.Contains(string(text), ") Z ")
}

// A process that becomes a user's after it was started cannot be traced by that user, even of the same group; a process
// that was started as that user's can. It has no rights of root left, and ends with its parent.
func TestBecome(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for how, want := range map[string]string{"become": "denied", "credential": "read"} {
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{"probe", "become", how, filepath.Join(dir, "ready")}
		uid := uint32(0)
		if how == "credential" {
			uid = 65534
			expect.OK(t, errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		ended := make(chan error, 1)
		go func() { ended <- RunAs(ctx, cmd, uid, 65534) }()
		var said []byte
		for end := time.Now().Add(time.Minute); len(said) == 0; time.Sleep(10 * time.Millisecond) {
			said, _ = os.ReadFile(filepath.Join(dir, "ready"))
			expect.Must(t, time.Now().Before(end), how, "is not ready")
		}
		var pid, signal int
		var caps string
		_, err := fmt.Sscan(string(said), &pid, &signal, &caps)
		expect.OK(t, err)
		expect.Equal(t, signal, int(unix.SIGKILL), how)
		expect.Equal(t, caps, "0000000000000000", how)
		got := "read"
		if exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", fmt.Sprintf("/proc/%d/environ", pid)).Run() != nil {
			got = "denied"
		}
		expect.Equal(t, got, want, how)
		cancel()
		<-ended
	}
	expect.True(t, Become(0, 65534) != nil && Become(65534, 0) != nil, "it stays root's")
}

// Only the beginning of a command's output is kept.
func TestFirstBytes(t *testing.T) {
	out := FirstBytes{Most: 400}
	for range 1000 {
		n, err := out.Write(make([]byte, 4096))
		expect.Must(t, n == 4096 && err == nil, n, err)
	}
	expect.Equal(t, len(out.Bytes), 400, "bytes are kept")
}
