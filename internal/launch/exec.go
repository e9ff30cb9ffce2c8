package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

// Exec replaces this process by the command, so that the exit status and signals are the command's
// own. It returns only on an error.
func (j *Job) Exec() error {
	if j.ruled {
		if j.run != nil {
			stop, err := job.InheritFile(j.run)
			if err != nil {
				return err
			}
			defer stop()
		}
		return execCommand(j.path, j.args, j.environ)
	}
	stop, err := j.Lock.Inherit()
	if err != nil {
		j.Discard()
		return err
	}
	if j.keep {
		err = j.enterNamespace() // changes only this thread, which calls exec below
	}
	if err == nil {
		err = execCommand(j.path, j.args, j.environ)
	}
	stop()
	j.Discard()
	return err
}

func execCommand(path string, args, environ []string) error {
	err := syscall.Exec(path, args, environ) // this also restores the limit on open files that Go raised
	return notRunnable(path, err)
}

func notRunnable(path string, err error) error {
	if errors.Is(err, unix.ENOEXEC) {
		return fmt.Errorf("%s: %w: not a program, and it names no interpreter (start it with one, as in sh %s)", path, ErrNotRunnable, path)
	}
	return fmt.Errorf("%s: %w: %w", path, ErrNotRunnable, err)
}
