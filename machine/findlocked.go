package machine

import (
	"fmt"
	"time"

	"ration/internal/job"
	"ration/internal/proc"
)

func isClosed(end <-chan struct{}) bool {
	select {
	case <-end:
		return true
	default:
		return false
	}
}

// findLocked finds regions by their locks, and reports whether jobs have disappeared.
func (s *scanner) findLocked(known map[job.FileID]bool) (gone bool) {
	timeout := lockTimeout
	if s.opts.Once {
		timeout = userTimeout // as long as for a user: nothing looks again later
	}
	deadline, stop := within(timeout)
	defer stop()
	at := time.Now()
	files, all, err := job.LockedFiles(deadline)
	if err != nil {
		return false
	}
	late := !all && isClosed(deadline)
	if s.slowLocks++; !late {
		s.slowLocks = 0
	}
	switch {
	case late && (s.opts.Once || s.slowLocks >= slowReads):
		s.notes = append(s.notes, Finding{Kind: Unanswering, Device: -1,
			Text:   fmt.Sprintf("the kernel's list of locks could not be read within %v; jobs outside the folders of jobs may be missing", timeout),
			Remedy: "look again when this machine is less busy, and if it stays so, in /proc/locks for a process with very many"})
	case !all && !late:
		s.notes = append(s.notes, Finding{Kind: Unanswering, Device: -1,
			Text:   "the kernel's list of locks is too long to be read, or the locks on jobs change all the time; jobs outside the folders of jobs may be missing",
			Remedy: "look in /proc/locks for the process that takes so many"})
	}
	locked := map[job.FileID]bool{}
	s.lockers = lockers{at, map[int][]job.FileID{}}
	for _, f := range files {
		locked[f.ID] = true
		for _, pid := range f.PIDs {
			s.lockers.files[pid] = append(s.lockers.files[pid], f.ID)
		}
		if !known[f.ID] && s.outside[f.ID] == nil {
			account := -1
			if owner, _, _, err := proc.Owner(f.PIDs[0]); err == nil {
				account = proc.Account(owner)
			}
			u := newUserScan(0, "a region that a process has locked", s.quotaOf(account))
			u.locked, u.once, u.account, u.ended = &f, s.opts.Once, account, s.opts.Ended
			s.outside[f.ID] = u
		}
	}
	return s.forgetOutside(known, locked, all)
}

// forgetOutside drops regions that are known by another path, or are not locked any more. complete
// says whether locked has all locked files. It reports whether jobs have disappeared.
func (s *scanner) forgetOutside(known, locked map[job.FileID]bool, complete bool) (gone bool) {
	for id, u := range s.outside {
		ended := !locked[id] && (complete || !u.isRunning() || len(s.outside) > maxOutside)
		if (ended || known[id]) && !u.isScanning() {
			gone = gone || len(u.last.jobs) > 0
			u.end()
			delete(s.outside, id)
		}
	}
	return gone
}
