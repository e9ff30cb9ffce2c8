package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// InUsersJob reports whether the command is, without a name, in the job that a policy keeps for all programs of the user. That
// job does not end with the command, so there is no end to record.
func (j *Job) InUsersJob() bool { return j.ruled && j.Lock == nil }

// Exec replaces this process by a command in its user's job. It returns only on an error.
func (j *Job) Exec() error { return execCommand(j.path, j.args, j.environ) }

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
