package privsep

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// testReader is the user and the group of readers in tests.
const testReader = 65533

func TestMain(m *testing.M) {
	if os.Args[0] == "probe" {
		if os.Args[1] == "wait" {
			os.Exit(waitForEnd())
		}
		os.Exit(probe(os.Args[1]))
	}
	os.Exit(m.Run())
}

// probe is a reader that was taken over: it tries what a reader must be able to do, and must not, on its parent, which is root's, and on a file of
// root's. It writes what came of it as JSON to the descriptor that the agent's socket would have.
func probe(file string) int {
	parent := os.Getppid()
	of := "/proc/" + strconv.Itoa(parent)
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	raw := func(call, a, b, c uintptr) error {
		if _, _, err := unix.RawSyscall6(call, a, b, c, 0, 0, 0); err != 0 {
			return err
		}
		return nil
	}
	word := uint64(1)
	own := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&word)), Len: 8}}
	theirs := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&os.Args)), Len: 8}} // this is the same program
	pidfd, err := unix.PidfdOpen(parent, 0)
	results := map[string]error{
		// What it needs.
		"read a file of root's":  open(file, unix.O_RDONLY),
		"wait for a process":     err,
		"see mapped files":       open(of+"/maps", unix.O_RDONLY),
		"see descriptors":        open(of+"/fd", unix.O_RDONLY|unix.O_DIRECTORY),
		"see the root":           open(of+"/root/", unix.O_PATH|unix.O_DIRECTORY),
		"write to a public file": open("/dev/null", unix.O_RDWR),

		// What it must not.
		"write a file of root's":    open(file, unix.O_WRONLY),
		"make a file":               open(filepath.Join(filepath.Dir(file), "new"), unix.O_WRONLY|unix.O_CREAT),
		"remove a file":             unix.Unlink(file),
		"write memory by its file":  open(of+"/mem", unix.O_RDWR),
		"write memory of init":      open("/proc/1/mem", unix.O_RDWR),
		"write memory":              func() error { _, err := unix.ProcessVMWritev(parent, own, theirs, 0); return err }(),
		"read memory":               func() error { _, err := unix.ProcessVMReadv(parent, own, theirs, 0); return err }(),
		"attach":                    unix.PtraceSeize(parent),
		"take a descriptor":         func() error { _, err := unix.PidfdGetfd(pidfd, 0, 0); return err }(),
		"open a file by a handle":   byHandle(file),
		"send a signal":             unix.Kill(parent, 0),
		"become root":               unix.Setresuid(0, 0, 0),
		"become another user":       unix.Setresuid(65534, 65534, 65534),
		"join a group":              unix.Setgroups([]int{0}),
		"be of root's group":        unix.Setresgid(0, 0, 0),
		"give a file away":          unix.Chown(file, testReader, testReader),
		"change a mode":             unix.Chmod(file, 0o666),
		"make a user namespace":     raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0),
		"make one with a process":   raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0),
		"make one by clone3":        raw(unix.SYS_CLONE3, 0, 0, 0),
		"enter a namespace":         func() error { return unix.Setns(pidfd, unix.CLONE_NEWNS) }(),
		"be asked past the filter":  raw(unix.SYS_IO_URING_SETUP, 1, 0, 0),
		"bind to a privileged port": bindPort(1),
	}
	if runtime.GOARCH == "amd64" {
		results["attach, as an x32 program"] = raw(x32Bit|521, unix.PTRACE_SEIZE, uintptr(parent), 0)
	}
	out := map[string]string{}
	for what, err := range results {
		if out[what] = ""; err != nil {
			out[what] = err.Error()
		}
	}
	if json.NewEncoder(os.NewFile(SocketFD, "results")).Encode(out) != nil {
		return 1
	}
	return 0
}

func byHandle(file string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, 0)
	if err != nil {
		return errors.Join(errors.New("no handle"), err)
	}
	folder, err := unix.Open(filepath.Dir(file), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	_, err = unix.OpenByHandleAt(folder, handle, unix.O_RDONLY)
	return err
}

func bindPort(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

// A reader that was taken over can look at everything, and change nothing that is not its own.
func TestReaderCanChangeNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user")
	}
	file := filepath.Join(t.TempDir(), "secret")
	expect.OK(t, os.WriteFile(file, []byte("secret"), 0o600))
	r, w, err := os.Pipe()
	expect.OK(t, err)
	defer r.Close()
	err = Run(context.Background(), Options{UID: testReader, GID: testReader, Args: []string{"probe", file}, Socket: w, Lock: w, Ready: func() {}, Stopping: func() {}})
	_ = w.Close()
	expect.OK(t, err)
	text, err := io.ReadAll(r)
	expect.OK(t, err)
	got := map[string]string{}
	expect.OK(t, json.Unmarshal(text, &got), text)
	needs := []string{"read a file of root's", "wait for a process", "see mapped files", "see descriptors", "see the root", "write to a public file"}
	expect.True(t, len(got) >= len(needs)+20, got)
	for what, failed := range got {
		switch {
		case slices.Contains(needs, what):
			expect.Equal(t, failed, "", "it cannot", what)
		case what == "make one by clone3":
			expect.Equal(t, failed, unix.ENOSYS.Error(), what) // so that libraries do without it
		case failed != unix.EPERM.Error() && failed != unix.EACCES.Error():
			t.Errorf("it can %s: %q", what, failed)
		}
	}
}

// confinement returns what was taken from a process that this one starts.
func confinement(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("grep", "-E", "^(NoNewPrivs|Seccomp|CapBnd|CapEff):", "/proc/self/status").Output()
	expect.Equal(t, err, nil)
	return string(out)
}

// wantConfinement starts many processes, by whatever threads there are, and checks that.
func wantConfinement(t *testing.T, want string) {
	t.Helper()
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			expect.Equal(t, confinement(t), want, "what a process has, beside what it had before there was a reader")
		})
	}
	all.Wait()
}

// What the reader may not is taken from no other process that its parent starts: while it runs, after that,
// and where it could not be started.
func TestConfinesNothingElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user")
	}
	before := confinement(t)
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error)
	opts := Options{UID: testReader, GID: testReader, Args: []string{"probe", "wait"}, Socket: os.Stderr, Lock: os.Stderr, Ready: func() { close(ready) }, Stopping: func() {}}
	go func() { ended <- Run(ctx, opts) }()
	<-ready
	wantConfinement(t, before)
	stop()
	expect.Equal(t, <-ended, nil)
	wantConfinement(t, before)
	opts.UID = math.MaxUint32 // which is no user to the kernel
	err := Run(ctx, opts)
	expect.True(t, errors.Is(err, ErrNotStarted), err)
	wantConfinement(t, before)
}

// waitForEnd is a reader that does nothing until it is asked to end.
func waitForEnd() int {
	c, err := Open()
	if err != nil {
		return 1
	}
	c.Ready()
	<-c.Ended()
	return 0
}
