package privsep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// leftOpen is a descriptor that the parent has inherited.
const leftOpen = 99

// testReader is the user and the group of readers in tests.
const testReader = 65533

// The signal of a parent's end is one of the first thread, on which become has to stay.
func init() {
	if os.Args[0] == "probe" && os.Args[1] == "become" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if os.Args[0] == "probe" {
		switch os.Args[1] {
		case "wait":
			os.Exit(waitForEnd())
		case "hold":
			os.Exit(hold(os.Args[2], os.Args[3]))
		case "become":
			os.Exit(become(os.Args[2], os.Args[3]))
		case "trace":
			os.Exit(trace(os.Args[2]))
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
	questions, err2 := connAt(inspectFD)
	if err2 != nil {
		return 1
	}
	asking := newInspector(questions)
	_, mapsErr := asking.OpenMaps(parent)
	listener, listenErr := asking.Listen()
	if listenErr != nil {
		return 1
	}
	defer listener.Close()
	results := map[string]error{
		// What it needs.
		"read a file of root's":  open(file, unix.O_RDONLY),
		"wait for a process":     err,
		"write to a public file": open("/dev/null", unix.O_RDWR),
		"ask for mapped files":   mapsErr,
		"ask for the socket":     listenErr,
		"have a harmless log":    can(isNull(0) && isNull(1) && isPipe(2)),

		// What it must not.
		"write a file of root's":   open(file, unix.O_WRONLY),
		"make a file":              open(filepath.Join(filepath.Dir(file), "new"), unix.O_WRONLY|unix.O_CREAT),
		"remove a file":            unix.Unlink(file),
		"write memory by its file": open(of+"/mem", unix.O_RDWR),
		"read memory by its file":  open(of+"/mem", unix.O_RDONLY),
		"read the environment":     readFile(of + "/environ"),
		"see mapped files":         open(of+"/maps", unix.O_RDONLY),
		"open a descriptor":        open(of+"/fd/0", unix.O_PATH),
		"see the root":             open(of+"/root/", unix.O_PATH|unix.O_DIRECTORY),
		"make a TCP socket":        socketOf(unix.AF_INET),
		"make a netlink socket":    socketOf(unix.AF_NETLINK),
		"bind a socket of its own": unix.Bind(channelFD, &unix.SockaddrUnix{Name: ""}),
		"listen by itself":         unix.Listen(channelFD, 1),
		"read root's keys":         raw(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 0), // KEY_SPEC_SESSION_KEYRING
		"have an inherited file":   func() error { _, err := unix.FcntlInt(leftOpen, unix.F_GETFD, 0); return can(err == nil) }(),
		"write memory of init":     open("/proc/1/mem", unix.O_RDWR),
		"write memory":             func() error { _, err := unix.ProcessVMWritev(parent, own, theirs, 0); return err }(),
		"read memory":              func() error { _, err := unix.ProcessVMReadv(parent, own, theirs, 0); return err }(),
		"attach":                   unix.PtraceSeize(parent),
		"take a descriptor":        func() error { _, err := unix.PidfdGetfd(pidfd, 0, 0); return err }(),
		"open a file by a handle":  byHandle(file),
		"send a signal":            unix.Kill(parent, 0),
		"become root":              unix.Setresuid(0, 0, 0),
		"become another user":      unix.Setresuid(65534, 65534, 65534),
		"join a group":             unix.Setgroups([]int{0}),
		"be of root's group":       unix.Setresgid(0, 0, 0),
		"give a file away":         unix.Chown(file, testReader, testReader),
		"change a mode":            unix.Chmod(file, 0o666),
		"make a user namespace":    raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0),
		"make one with a process":  raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0),
		"make one by clone3":       raw(unix.SYS_CLONE3, 0, 0, 0),
		"enter a namespace":        func() error { return unix.Setns(pidfd, unix.CLONE_NEWNS) }(),
		"be asked past the filter": raw(unix.SYS_IO_URING_SETUP, 1, 0, 0),
	}
	if runtime.GOARCH == "amd64" {
		results["attach, as an x32 program"] = raw(x32Bit|521, unix.PTRACE_SEIZE, uintptr(parent), 0)
	}
	if rulesForTCP() {
		results["connect to a network"] = connectAnew(listener)
	}
	out := map[string]string{}
	for what, err := range results {
		if out[what] = ""; err != nil {
			out[what] = err.Error()
		}
	}
	fmt.Fprintln(os.Stderr, "\x1b[2Jlog")
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

// can returns an error if something cannot be done.
func can(is bool) error {
	if is {
		return nil
	}
	return unix.EPERM
}

// isPipe and isNull report what a descriptor is of.
func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

func isNull(fd int) bool {
	var st, null unix.Stat_t
	return unix.Fstat(fd, &st) == nil && unix.Stat(os.DevNull, &null) == nil && st.Rdev == null.Rdev && st.Mode&unix.S_IFMT == unix.S_IFCHR
}

// readFile reads a file that can always be opened.
func readFile(path string) error {
	_, err := os.ReadFile(path)
	var failed *os.PathError
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

func socketOf(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// connectAnew makes a listening socket one that is connected to the address where it has listened.
func connectAnew(l net.Listener) error {
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer file.Close()
	fd := int(file.Fd())
	unspecified := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}})
}

// rulesForTCP reports whether this kernel has them.
func rulesForTCP() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && version >= networkVersion
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
	var log bytes.Buffer
	// As from a shell that has left a file open.
	expect.OK(t, unix.Dup3(int(w.Fd()), leftOpen, 0))
	err = Run(context.Background(), Options{UID: testReader, GID: testReader, Args: []string{"probe", file}, Socket: w, Lock: w, Listen: "127.0.0.1:0", Stderr: &log,
		Ready: func() {}, Stopping: func() {}})
	_, _ = w.Close(), unix.Close(leftOpen)
	expect.OK(t, err)
	expect.Equal(t, log.String(), "?[2Jlog\n")
	text, err := io.ReadAll(r)
	expect.OK(t, err)
	got := map[string]string{}
	expect.OK(t, json.Unmarshal(text, &got), text)
	needs := []string{"read a file of root's", "wait for a process", "write to a public file", "ask for mapped files", "ask for the socket", "have a harmless log"}
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
	opts := Options{UID: testReader, GID: testReader, Args: []string{"probe", "wait"}, Socket: os.Stderr, Lock: os.Stderr, Stderr: t.Output(), Ready: func() { close(ready) }, Stopping: func() {}}
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

// become is a process of TestBecome. It writes its PID, the signal that it gets when its parent ends, and its
// capabilities into a file, and waits.
func become(how, file string) int {
	ready, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil && how == "become" {
		err = Become(65534, 65534)
	}
	var signal int32
	if err == nil {
		err = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0)
	}
	status, _ := os.ReadFile("/proc/self/status")
	_, caps, _ := strings.Cut(string(status), "CapPrm:")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(ready, os.Getpid(), signal, strings.Fields(caps)[0])
	for {
		_ = unix.Pause()
	}
}

// trace is a user's process that traces another one, and never waits for its end. It writes a line when it does.
func trace(pid string) int {
	runtime.LockOSThread()
	n, err := strconv.Atoi(pid)
	if err != nil {
		return 1
	}
	if _, _, failed := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(n), 0, 0, 0, 0); failed != 0 {
		fmt.Println(failed)
		return 1
	}
	fmt.Println("traces")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has ended
	return 0
}
