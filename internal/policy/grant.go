package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ration/internal/job"
)

// Granting is a protocol of three steps: promise, join, lapse. PROTOCOL.md gives the invariant, the
// steps, and the state after a crash between any two steps. Callers of these functions hold the lock of
// lockJobs.

// promise returns a descriptor for the process that asked for the job of a user. The job stays while any
// process has it open: the kernel closes it when the asking process dies. It is nil for a user without a
// job, who is exempt.
func promise(uid int) (*os.File, error) {
	if !usable(uid) {
		return nil, nil
	}
	return job.HandOn(jobOf(uid))
}

// checkIdle returns nil if the job of a user can be taken back: it has no process and no promise, and the user has no run.
// A run is a part of the ration: beside it the user's other programs have the rest.
func checkIdle(uid int) error {
	if runs := job.RunsOf(uid); len(runs) > 0 {
		return fmt.Errorf("taking back the job of user %d: %w by the run %s", uid, job.ErrInUse, runs[0].Name)
	}
	return job.CheckRemovable(jobOf(uid), true)
}

func idle(uid int) bool { return checkIdle(uid) == nil }

// evict takes back the job of a user that is idle. It is an error if a process has joined the job since, or has a promise.
func evict(uid int) error {
	if err := checkIdle(uid); err != nil {
		return err
	}
	// A process locks a slot and then looks for this file. So a process that still finds it has its slot
	// locked before Remove looks for locks.
	if err := renameMark(uid, job.CreatedName, job.LeavingName); err != nil {
		return err
	}
	passed("leaving")
	_ = keepLast(uid, time.Now()) // if its user prevents that, the job is removed all the same
	if err := job.Remove(jobOf(uid), true); err != nil {
		return errors.Join(err, renameMark(uid, job.LeavingName, job.CreatedName))
	}
	passed("evicted")
	return nil
}

func renameMark(uid int, from, to string) error {
	folder := folderOf(uid)
	err := os.Rename(filepath.Join(folder, from), filepath.Join(folder, to))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("taking back the job of user %d: %w", uid, err)
	}
	return nil
}

// keepLeaving lets users keep the jobs that a service was taking back when it died.
func keepLeaving() error {
	var all []error
	for _, uid := range Users() {
		all = append(all, renameMark(uid, job.LeavingName, job.CreatedName))
	}
	return errors.Join(all...)
}
