package cli

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var record = flag.String("record", "", "write what `ration top` shows to this file")

// environ returns the environment of a user at a terminal.
func environ(folder string, more ...string) []string {
	return append([]string{"RATION_DIR=" + folder, "CUDA_DEVICE_MEMORY_SHARED_CACHE=", "TERM=xterm-256color",
		"LC_ALL=C.UTF-8", "NO_COLOR="}, more...)
}

// TestTop has real processes, a real region and the real program on a pseudo-terminal.
func TestTop(t *testing.T) {
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	workers := startJob(t, folder, "train",
		[]string{"10g", "518m", "2900m", "rank-0"},
		[]string{"10g", "518m", "2100m", "rank-1"},
		[]string{"10g", "518m", "1400m", "rank-2", "2g", "-2g"},
		[]string{"10g", "518m", "300m", "eval", "3g", "3g"})
	startJob(t, folder, "serve", []string{"4g", "518m", "1g", "server"})

	s := onTerminal(t, 80, 24, environ(folder), "ration", "top", "--interval", "100ms")
	s.shows(`(?m)^▸ serve +0 █.*┃ +1\.51G +4G +38%`)
	s.shows(`processes of serve, by bytes`)
	s.press("\x1b[B") // down
	s.shows(`(?m)^▸ train +0 █.*┃ +8\.57G +10G +86%`)
	s.shows(`(?s)processes of train, by bytes.* rank-0\n.* rank-1\n.* rank-2\n.* eval\n`)
	s.shows(`train: eval \(\d+\) asked for 3 GiB ×2 with 1\.43 GiB free of 10\s+GiB;`)
	s.press("sss")
	s.shows(`(?s)by joined.*SINCE▼.* eval\n.* rank-2\n`)
	s.press("s")
	s.shows(`(?s)by bytes.* rank-0\n.* eval\n`)
	if *record != "" {
		time.Sleep(5 * time.Second) // so that the ages in the picture are not 0
		if err := os.WriteFile(*record, []byte(s.text()), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	// A killed process.
	if err := workers[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = workers[0].Wait()
	s.shows(`rank-0 \([?]\d+\) died holding 3\.34 GiB`)
	s.shows(`(?m)^▸ train .* 5\.23G +10G`)

	// Keys, and sizes of the terminal.
	s.press(" ")
	s.shows(`paused at`)
	s.press(" ")
	s.waitUntil("resumed", func(text string) bool { return !strings.Contains(text, "paused") })
	s.press("?")
	s.shows(`any key: back`)
	s.press("x")
	s.shows(`refusals and deaths`)
	s.resize(120, 40)
	s.shows(`OF LIMIT`)
	s.resize(40, 8)
	s.shows(`▸ train`)
	s.resize(80, 24)
	s.press("a")
	s.shows(`processes of all jobs`)
	s.press("q")
	s.exits(0)
}

// TestTopEnds checks the exit status and the terminal after each way to end.
func TestTopEnds(t *testing.T) {
	folder := t.TempDir()
	for name, how := range map[string]func(*screen){
		"interrupt key": func(s *screen) { s.press("\x03") },
		"escape":        func(s *screen) { s.press("\x1b") },
	} {
		t.Run(name, func(t *testing.T) {
			s := onTerminal(t, 80, 24, environ(folder), "ration", "top")
			s.shows("There are no jobs in")
			how(s)
			s.exits(0)
		})
	}
	t.Run("SIGTERM", func(t *testing.T) {
		s := onTerminal(t, 80, 24, environ(folder), "ration", "top")
		s.shows("There are no jobs in")
		if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.exits(ExitSignal + int(unix.SIGTERM))
	})
}

// TestTopTerminals has terminals with fewer features.
func TestTopTerminals(t *testing.T) {
	folder := t.TempDir()
	startJob(t, folder, "train", []string{"10g", "0", "5g", "rank-0"})
	for _, term := range []string{"xterm", "screen", "tmux-256color", "vt100", "linux"} {
		t.Run(term, func(t *testing.T) {
			more := []string{"TERM=" + term, "SSH_TTY=/dev/pts/0", "NO_COLOR=1"}
			bar := "▸ train +0 █"
			if term == "linux" {
				bar = "> train +0 #"
			}
			if term == "vt100" {
				more, bar = append(more, "LC_ALL=C"), "> train +0 #"
			}
			s := onTerminal(t, 80, 24, environ(folder, more...), "ration", "top", "--read-only")
			s.shows(bar)
			s.press("s")
			s.shows("by PID")
			s.press("q")
			s.exits(0)
		})
	}
	t.Run("dumb", func(t *testing.T) {
		s := onTerminal(t, 80, 24, environ(folder, "TERM=dumb"), "ration", "top")
		s.shows(`ration: the terminal cannot move its cursor: TERM is dumb \(use ration ps --watch`)
	})
}

func TestWatchOnTerminal(t *testing.T) {
	folder := t.TempDir()
	startJob(t, folder, "train", []string{"10g", "0", "5g", "rank-0"})
	s := onTerminal(t, 80, 24, environ(folder), "ration", "ps", "--watch", "--interval", "100ms", "--count", "3")
	s.shows(`device 0  █+·+  5 GiB of 10 GiB \(50 %\)`)
	s.shows(` rank-0`)
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(s.text(), "rank-0"); n != 1 {
		t.Errorf("drawn %d times:\n%s", n, s.text())
	}
}
