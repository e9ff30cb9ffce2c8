package privsep

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/termtext"
)

// closeOnExec keeps all descriptors, such as those that a shell has left open, from the processes that this one
// starts.
func closeOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	names, err := os.ReadDir("/proc/self/fd") // for kernels before 5.11
	if err != nil {
		return fmt.Errorf("listing the open descriptors: %w", err)
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// NewKeyring gives this thread, and the processes that it starts, an empty session keyring, so that they
// cannot read the keys of the session in which root has started the agent. A kernel without keys, or a
// filter that also counts for those processes, may refuse it.
func NewKeyring() error {
	_, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EPERM {
		return fmt.Errorf("making a session keyring: %w", errno)
	}
	return nil
}

// Undumpable keeps other processes of this process's user from its memory, and the memory out of core dumps.
func Undumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keeping this process's memory from others: %w", err)
	}
	return nil
}

// Isolate keeps what this process has from the processes that it starts for other users, and from those that
// may trace it.
func Isolate() error { return errors.Join(closeOnExec(), Undumpable()) }

// maxLogLine is how much of a line is passed on at once.
const maxLogLine = 16 << 10

// lines passes on what is written to it a line at a time, without anything that a terminal obeys.
type lines struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // under mu: the beginning of a line
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := text; len(rest) > 0; {
		line, more, whole := bytes.Cut(rest, []byte("\n"))
		if room := maxLogLine - len(l.rest); len(line) > room {
			line, more, whole = line[:room], rest[room:], true
		}
		l.rest, rest = append(l.rest, line...), more
		if whole {
			l.flush()
		}
	}
	return len(text), nil // a full disk of the log's does not end the reader
}

// flush passes on what there is. The lock is held.
func (l *lines) flush() {
	_, _ = io.WriteString(l.to, termtext.Printable(strings.ReplaceAll(string(l.rest), "\t", "    "))+"\n")
	l.rest = l.rest[:0]
}

// end passes on a last line without an end.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.flush()
	}
}
