package privsep

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Options say how the parent runs its reader.
type Options struct {
	UID, GID uint32
	Groups   []uint32 // further ones
	Args     []string // with which the reader, which is this program, begins
	Socket   *os.File // the agent's, which listens
	Lock     *os.File // of the agent's folder
	// Reap runs a process of that user that returns what dead processes of the jobs with those regions
	// hold. The context ends it.
	Reap func(ctx context.Context, paths []string, uid int) error
	// Ready is called when the reader has looked once, and Stopping, once, when it is to end or has ended.
	Ready, Stopping func()
}

// ErrNotStarted is returned where there is no reader: nothing has begun.
var ErrNotStarted = errors.New("the reader could not be started")

// ErrBroken is returned where the reader has sent what is no message, and was killed.
var ErrBroken = errors.New("the reader has sent what is no message")

// ErrLate is returned where the reader did not end when it was asked to, and was killed.
var ErrLate = errors.New("the reader did not end when it was asked to")

// Run starts a reader, and does what it asks for until it has ended. When the context ends, the reader is
// asked to end. The error is an *exec.ExitError for one that did not end well by itself.
func Run(ctx context.Context, opts Options) error {
	own, theirs, err := pair()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir, cmd.Stderr = opts.Args, environ(), "/", os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, opts.Socket, opts.Lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: opts.UID, Gid: opts.GID, Groups: opts.Groups},
		AmbientCaps: readerCaps,
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true, // so that it cannot type into the terminal from which root has started this
	}
	ended, err := start(cmd)
	_ = theirs.Close()
	if err != nil {
		_ = own.Close()
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	return attend(ctx, own, opts, ended, cmd.Process.Kill)
}

// pair returns the two ends of the channel.
func pair() (own *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "channel")
	defer file.Close() // the connection has its own
	theirs = os.NewFile(uintptr(fds[1]), "channel")
	c, err := net.FileConn(file)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// environ is what the reader gets of the environment. The parent alone talks to systemd.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") })
}

// start starts the reader, and returns a channel with how it ended. A thread of its own does that, which
// lasts as long: what the thread takes from itself the reader never has, and the kernel kills the reader
// when the thread that started it ends.
func start(cmd *exec.Cmd) (ended <-chan error, err error) {
	begun, end := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread goes with this function
		err := confine()
		if err == nil {
			err = cmd.Start()
		}
		if begun <- err; err == nil {
			end <- cmd.Wait()
		}
	}()
	return end, <-begun
}

// attend does what a reader asks for until it has ended, which a message on ended says.
func attend(ctx context.Context, own *net.UnixConn, opts Options, ended <-chan error, kill func() error) error {
	stopping := sync.OnceFunc(opts.Stopping)
	defer stopping()
	working, stop := context.WithCancel(context.Background())
	var broken error
	over := make(chan struct{})
	go func() {
		broken = serve(working, own, opts)
		close(over)
	}()
	defer func() {
		stop()
		_ = own.Close()
		<-over
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case <-over: // it has ended, or can ask for nothing any more
		if broken != nil {
			return endBy(kill, ended, broken)
		}
	}
	stopping()
	_ = own.CloseWrite()
	select {
	case err := <-ended:
		return err
	case <-time.After(endTimeout):
		return endBy(kill, ended, ErrLate)
	}
}

// endBy ends a reader for a reason.
func endBy(kill func() error, ended <-chan error, why error) error {
	if err := kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(why, err) // the kernel does it when this process has ended
	}
	<-ended
	return why
}

// serve does what is asked for over a connection, until its other end is closed or the context ends. The error
// is for what is no message.
func serve(ctx context.Context, own net.Conn, opts Options) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer func() { // processes that reap are ended: half done is as good as not begun
		cancel()
		_ = own.Close()
		wait.Wait()
	}()
	writing := make(chan struct{}, 1) // one line after the other
	ready := sync.OnceFunc(opts.Ready)
	places := make(chan struct{}, MaxReaping)
	lines := bufio.NewScanner(own)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		if m.Ready {
			ready()
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		wait.Go(func() {
			a := answer{ID: m.ID}
			if err := m.reap(ctx, opts); err != nil {
				a.Error = firstOf(err.Error())
			}
			writing <- struct{}{}
			_ = json.NewEncoder(own).Encode(a) // it has ended
			<-writing
			<-places
		})
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%w: a line of more than %d bytes", ErrBroken, maxLine)
	}
	return nil // of another error it has ended, or this process is to
}

// reap does what was asked for, unless there is something wrong with it.
func (m *message) reap(ctx context.Context, opts Options) error {
	if err := m.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return opts.Reap(ctx, m.Paths, int(m.UID))
}

// firstOf returns the beginning of a text.
func firstOf(text string) string {
	if len(text) <= maxError {
		return text
	}
	n := maxError
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
