package privsep

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

// Options are the settings of the parent.
type Options struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups of the reader
	Args     []string // first arguments of the reader, which is this same program
	Socket   *os.File // the agent's listening socket
	Lock     *os.File // file with the lock of the agent's folder
	Listen   string   // address that serves metrics; empty for no metrics
	// Stderr gets the lines that the reader writes to its stderr, without control characters.
	Stderr io.Writer
	// Reap runs ration reap as the given user, for the regions at paths. It ends with the context.
	Reap func(ctx context.Context, paths []string, uid int) error
	// Stop lets the reader end processes of jobs over their limits.
	Stop bool
	// Ready is called after the reader's first scan. Stopping is called once, when the reader is
	// asked to end or has ended.
	Ready, Stopping func()
}

// ErrNotStarted is returned if the reader could not be started.
var ErrNotStarted = errors.New("the reader could not be started")

// ErrBroken is returned if the reader sent something that is not a message. It was killed.
var ErrBroken = errors.New("the reader has sent something that is not a message")

// ErrLate is returned if the reader did not end when it was asked to. It was killed.
var ErrLate = errors.New("the reader did not end when it was asked to")

// Run starts a reader and serves its requests until the reader has ended. When the context ends, it
// asks the reader to end. The error is an *exec.ExitError if the reader failed.
func Run(ctx context.Context, opts Options) error {
	if err := closeOnExec(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	own, theirs, err := pair(unix.SOCK_STREAM)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	questions, asking, err := pair(unix.SOCK_SEQPACKET)
	if err != nil {
		_, _ = own.Close(), theirs.Close()
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	defer questions.Close()
	cmd := exec.Command("/proc/self/exe")
	// It has no file of root's: its input and output are /dev/null, and its standard error is a pipe, which a
	// child of it could keep open.
	cmd.Args, cmd.Env, cmd.Dir = opts.Args, environ(os.Environ()), "/"
	log := &lines{to: opts.Stderr}
	cmd.Stderr, cmd.WaitDelay = log, time.Second
	cmd.ExtraFiles = []*os.File{theirs, opts.Socket, opts.Lock, asking}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: opts.UID, Gid: opts.GID, Groups: opts.Groups},
		AmbientCaps: readerCaps,
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true, // without the parent's terminal, the reader cannot insert input there
	}
	ended, err := start(cmd)
	_, _ = theirs.Close(), asking.Close()
	if err != nil {
		_ = own.Close()
		return fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	answered := make(chan error, 1)
	go func() {
		err := inspect(questions, listenAt(opts.Listen))
		if err != nil {
			_ = cmd.Process.Kill()
		}
		answered <- err
	}()
	err = attend(ctx, own, opts, ended, cmd.Process.Signal)
	log.end()
	_ = questions.Close()
	if _, broken := within(killTimeout, answered); broken != nil {
		return broken
	}
	return err
}

// pair returns the two ends of a channel.
func pair(kind int) (own *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "channel")
	defer file.Close() // net.FileConn made a copy
	theirs = os.NewFile(uintptr(fds[1]), "channel")
	c, err := net.FileConn(file)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// passedOn are the variables that the reader gets, or how their names begin. Others may have a secret of root's,
// and only the parent talks to systemd.
var passedOn = []string{"PATH=", "LD_LIBRARY_PATH=", "LANG=", "LC_", "TZ=", "TMPDIR=", "XDG_RUNTIME_DIR=", "RATION_", "FAKEGPU_", "CUDA_", "NVIDIA_",
	"GOGC=", "GOMEMLIMIT=", "GOMAXPROCS=", "GODEBUG=", "GOTRACEBACK=", "GOCOVERDIR="}

// environ returns the reader's environment.
func environ(own []string) []string {
	return slices.DeleteFunc(own, func(v string) bool {
		return !slices.ContainsFunc(passedOn, func(name string) bool { return strings.HasPrefix(v, name) })
	})
}

// start starts the reader, and returns a channel that gets the reader's result. It uses a thread of
// its own, which ends only after the reader, for two reasons: the reader inherits the thread's
// dropped rights, and the kernel kills the reader when the thread that started it ends.
func start(cmd *exec.Cmd) (ended <-chan error, err error) {
	begun, end := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
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

// attend serves a reader's requests until ended has its result.
func attend(ctx context.Context, own *net.UnixConn, opts Options, ended <-chan error, signal func(os.Signal) error) error {
	stopping := sync.OnceFunc(opts.Stopping)
	defer stopping()
	working, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(working, own, opts) }()
	over := false
	defer func() {
		stop()
		_ = own.Close()
		if !over {
			_, _ = within(killTimeout, served)
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case broken := <-served: // the reader has ended, or has closed its end
		over = true
		if broken != nil {
			return endBy(signal, ended, broken)
		}
	}
	stopping()
	_ = own.CloseWrite()
	return awaitEnd(signal, ended)
}

// awaitEnd waits for a reader that was asked to end. If it is late, SIGQUIT makes it log what it was doing.
func awaitEnd(signal func(os.Signal) error, ended <-chan error) error {
	if over, err := within(endTimeout, ended); over {
		return err
	}
	_ = signal(unix.SIGQUIT) // fails if it has ended
	_, _ = within(killTimeout, ended)
	return endBy(signal, ended, ErrLate)
}

// endBy kills the reader and returns why. It does not wait for a reader that the kernel cannot end, because a call of
// it waits for a file system.
func endBy(signal func(os.Signal) error, ended <-chan error, why error) error {
	if err := signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(why, err) // the kernel kills it when this process ends
	}
	_, _ = within(killTimeout, ended)
	return why
}

// within waits for a result, at most so many seconds. It counts them one by one: if the machine is suspended meanwhile,
// the reader does not run either, and all of that time counts as one second.
func within(most time.Duration, result <-chan error) (over bool, err error) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for range most / time.Second {
		select {
		case err := <-result:
			return true, err
		case <-second.C:
		}
	}
	select {
	case err := <-result: // both may be there
		return true, err
	default:
		return false, nil
	}
}

// serve serves the requests of a connection until the reader closes it or the context ends. It
// returns an error for a line that is not a message.
func serve(ctx context.Context, own net.Conn, opts Options) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer func() { // this kills ration reap, which may stop at any point without harm
		cancel()
		_ = own.Close()
		wait.Wait()
	}()
	writing := make(chan struct{}, 1) // one answer is written at a time
	ready := sync.OnceFunc(opts.Ready)
	slots := make(chan struct{}, MaxReaping)
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
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		wait.Go(func() {
			a := answer{ID: m.ID}
			var err error
			if len(m.Stop) > 0 {
				a.Stopped, err = m.stop(opts)
			} else {
				err = m.reap(ctx, opts)
			}
			if err != nil {
				a.Error = firstOf(err.Error())
			}
			writing <- struct{}{}
			_ = json.NewEncoder(own).Encode(a) // fails if the reader has ended
			<-writing
			<-slots
		})
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%w: a line of more than %d bytes", ErrBroken, maxLine)
	}
	return nil // any other error means that the reader has ended, or that this process is ending
}

// reap runs ration reap for a valid request.
func (m *message) reap(ctx context.Context, opts Options) error {
	if err := m.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return opts.Reap(ctx, m.Paths, int(m.UID))
}

// stop ends processes, for a valid request.
func (m *message) stop(opts Options) ([]int, error) {
	if !opts.Stop {
		return nil, fmt.Errorf("%w: the operator has not chosen to end processes (ration agent --on-escape=stop)", ErrRefused)
	}
	if m.UID < 0 || m.UID >= math.MaxUint32 || len(m.Paths) != 1 {
		return nil, fmt.Errorf("%w: processes of user %d in %d jobs", ErrRefused, m.UID, len(m.Paths))
	}
	s := Stop{Region: m.Paths[0], UID: int(m.UID), Processes: m.Stop, Kill: m.Kill}
	return s.Do()
}

// firstOf returns at most maxError bytes of a text, without cutting a character.
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
