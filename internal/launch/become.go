package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Become replaces this process by the command: its exit status and its signals are
// then nobody else's. It returns only if that cannot be done.
func (j *Job) Become() error {
	stop, err := j.Hold.Inherit()
	if err != nil {
		j.Discard()
		return err
	}
	if j.keep {
		err = j.enter() // and everything after it on this thread
	}
	if err == nil {
		err = become(j.path, j.args, j.environ)
	}
	stop()
	j.Discard()
	return err
}

func become(path string, args, environ []string) error {
	err := syscall.Exec(path, args, environ) // which also puts back the limit on files
	if errors.Is(err, unix.ENOEXEC) {
		return fmt.Errorf("%s: %w: not a program, and it names no interpreter (start it with one, as in sh %s)", path, ErrNotRunnable, path)
	}
	return fmt.Errorf("%s: %w: %w", path, ErrNotRunnable, err)
}
