package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/safepath"
)

// The folder job.HighFolder has an empty file for each user that may have high priority, by UID. The
// library counts no claim of high priority of other users while a policy is in force
// (shim/compute/PROTOCOLS.md, *Claims*). Callers of these functions hold the lock of lockJobs.

func highPath(uid int) string {
	return filepath.Join(job.RootFolder, job.HighFolder, strconv.Itoa(uid))
}

// mayBeHigh reports whether the users of a rule may have high priority. Nothing limits exempt users.
func (rule *Rule) mayBeHigh() bool {
	return rule.Exempt || rule.Largest.Priority == limit.PriorityHigh
}

// markHigh records whether a user may have high priority.
func markHigh(uid int, may bool) (err error) {
	if may {
		err = safepath.Replace(highPath(uid), nil, 0o444)
	} else if err = os.Remove(highPath(uid)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("recording the highest priority of user %d: %w", uid, err)
	}
	return nil
}

// keepHigh removes the records of users that may not have high priority any more, also of users
// without a job. A user whose rule cannot be looked up keeps it, like the job.
func (p *Policy) keepHigh() error {
	var all []error
	for _, uid := range highUsers() {
		if rule, err := p.For(uid); err == nil && (rule == nil || !rule.mayBeHigh()) {
			all = append(all, markHigh(uid, false))
		}
	}
	return errors.Join(all...)
}

// highUsers returns the users that are recorded.
func highUsers() (uids []int) {
	entries, _ := os.ReadDir(filepath.Dir(highPath(0)))
	for _, e := range entries {
		if uid, err := strconv.Atoi(e.Name()); err == nil {
			uids = append(uids, uid)
		}
	}
	return uids
}
