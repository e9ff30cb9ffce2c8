package cli

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// screen is a pseudo-terminal with a program on it.
type screen struct {
	t     *testing.T
	cmd   *exec.Cmd
	tty   *os.File      // the test's end
	line  *os.File      // the program's end, kept open to check its settings afterwards
	first *unix.Termios // before the program started
	ended chan error    // how the program ended

	sync.Mutex
	size pty.Winsize
	raw  []byte // written since the last resize
	all  []byte // written since the start
}

// onTerminal starts a program on a pseudo-terminal.
func onTerminal(t *testing.T, columns, rows uint16, environ []string, args ...string) *screen {
	t.Helper()
	tty, line, err := pty.Open()
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	s := &screen{t: t, tty: tty, line: line, ended: make(chan error, 1), size: pty.Winsize{Cols: columns, Rows: rows}}
	expect.OK(t, pty.Setsize(tty, &s.size))
	s.first, err = unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	expect.OK(t, err)
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), environ...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = line, line, line
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	expect.OK(t, s.cmd.Start())
	go s.listen()
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_, _ = line.Close(), tty.Close()
	})
	return s
}

func (s *screen) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := s.tty.Read(buf)
		s.Lock()
		s.raw, s.all = append(s.raw, buf[:n]...), append(s.all, buf[:n]...)
		s.Unlock()
		if err != nil {
			return
		}
	}
}

// unsupported matches escape sequences that the emulator mistakes for others.
var unsupported = regexp.MustCompile("\x1b\\[[<=>][0-9;]*[a-zA-Z]|\x1b\\[\\?[0-9;]*\\$p")

// text returns what the screen shows.
func (s *screen) text() string {
	s.Lock()
	defer s.Unlock()
	term := vt10x.New(vt10x.WithSize(int(s.size.Cols), int(s.size.Rows)))
	_, _ = term.Write(unsupported.ReplaceAll(s.raw, nil))
	lines := strings.Split(term.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// shows waits until the screen shows a pattern, and returns its text.
func (s *screen) shows(pattern string) string {
	s.t.Helper()
	return s.waitUntil(pattern, func(text string) bool { return regexp.MustCompile(pattern).MatchString(text) })
}

// waitUntil waits until the screen's text fulfils a condition, and returns the text.
func (s *screen) waitUntil(what string, fulfilled func(text string) bool) string {
	s.t.Helper()
	for range 600 {
		if text := s.text(); fulfilled(text) {
			return text
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Fatalf("%s: not on the screen:\n%s", what, s.text())
	return ""
}

func (s *screen) press(keys string) {
	s.t.Helper()
	_, err := s.tty.WriteString(keys)
	expect.OK(s.t, err)
}

func (s *screen) resize(columns, rows uint16) {
	s.t.Helper()
	s.Lock()
	s.size, s.raw = pty.Winsize{Cols: columns, Rows: rows}, nil
	s.Unlock()
	expect.OK(s.t, pty.Setsize(s.tty, &s.size))
}

// ends waits for the end of the program.
func (s *screen) ends(status int) {
	s.t.Helper()
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(time.Minute):
		s.t.Fatalf("still running:\n%s", s.text())
	}
	got, exit := 0, (*exec.ExitError)(nil)
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	}
	expect.Equal(s.t, got, status, "exit status", s.text())
}

// exits waits for the end of the program, and checks that it restored the terminal.
func (s *screen) exits(status int) {
	s.t.Helper()
	s.ends(status)
	now, err := unix.IoctlGetTermios(int(s.line.Fd()), unix.TCGETS)
	expect.True(s.t, err == nil && *now == *s.first, "terminal left as", now, err, "it was", s.first)
	const primary, cursor = "\x1b[?1049l", "\x1b[?25h"
	for range 200 { // its last output may still be unread
		s.Lock()
		restored := bytes.Contains(s.all, []byte(primary)) && bytes.Contains(s.all, []byte(cursor))
		s.Unlock()
		if restored {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Error("neither the primary screen nor the cursor was restored")
}

// jobsFolder returns a folder of jobs.
func jobsFolder(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "jobs")
	expect.OK(t, os.Mkdir(folder, 0o700))
	return folder
}

// start starts a program, and returns it with what it prints. It is asked to end when the test has ended.
func start(t *testing.T, environ []string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `exec "$@" 2>&1`, "sh"}, args...)...) // which knows the new PATH
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Process.Signal(unix.SIGCONT) // a test may have stopped it
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// startUntil starts a program, and returns it when it has said something.
func startUntil(t *testing.T, says string, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd, lines := start(t, environ, args...)
	for lines.Scan() {
		if strings.Contains(lines.Text(), says) {
			go func() {
				for lines.Scan() {
				}
			}()
			return cmd
		}
	}
	t.Fatalf("%q did not say %s", args, says)
	return nil
}

// startJob starts processes of a job. Each is a list of arguments of hold after the
// region: limit, context, data, name, requests.
func startJob(t *testing.T, folder, name string, processes ...[]string) []*exec.Cmd {
	t.Helper()
	region := filepath.Join(folder, name, "region")
	expect.OK(t, os.MkdirAll(filepath.Dir(region), 0o700))
	var out []*exec.Cmd
	for i, p := range processes {
		ready := filepath.Join(folder, name, "ready-"+string(rune('a'+i)))
		args := append([]string{region, p[0], p[1], p[2], ready}, p[3:]...)
		cmd := exec.Command("hold", args...)
		cmd.Stderr = os.Stderr
		expect.OK(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		for range 600 {
			if _, err := os.Stat(ready); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		out = append(out, cmd)
	}
	return out
}

// kill ends a process, and waits for its end.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	expect.OK(t, cmd.Process.Kill())
	_ = cmd.Wait()
}
