package region

import (
	"math"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// A region of another version of the layout cannot be read, but its processes can be
// found: in every version each has a byte of the file locked, and the kernel says which
// process that is.

// maxLockLooks bounds how often the kernel is asked for the locks of one file. Twice as many
// locks as a region has slots are found with it.
const maxLockLooks = 4096

// LockHolder is a process that has bytes of a region's file locked.
type LockHolder struct {
	PID      int  // as this process sees it; 0 where it cannot
	Verified bool // its own descriptors have the lock; otherwise the PID may be another's by now
}

// LockHolders returns which processes have any byte of a file locked, for writing: whatever
// the file holds. The file is in the folder dir; path is for messages.
func LockHolders(dir int, name, path string) ([]LockHolder, error) {
	f, err := openFileAt(dir, name, path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	h := &holders{f: f}
	h.reset()
	return h.all(maxLockLooks), nil
}

// all returns which processes have any byte of the file locked, for writing, after so many
// questions at most, and while the budget lasts; at least one of them, if there is any.
func (h *holders) all(looks int) (out []LockHolder) {
	f, seen := h.f, map[int]int{} // index by PID
	kept := false
	ask := func(from, to int64) (unix.Flock_t, bool) { // to: 0 is the end of any file
		l := unix.Flock_t{Type: unix.F_RDLCK, Start: from}
		if to != 0 {
			l.Len = to - from
		}
		looks--
		return l, unix.FcntlFlock(uintptr(f.number()), unix.F_GETLK, &l) == nil && l.Type != unix.F_UNLCK
	}
	// The kernel names one lock of a range, not the first: what is before it and behind it
	// is asked for in turn.
	type span struct{ from, to int64 }
	for todo := []span{{0, 0}}; len(todo) > 0 && looks > 0 && (len(out) == 0 || h.left()); {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		l, locked := ask(s.from, s.to)
		if !locked {
			continue
		}
		pid := max(0, int(l.Pid)) // -1: a lock of an open file
		i, known := seen[pid]
		if l.Pid < 0 {
			kept, known = true, true // most are of a process that has a lock of its own, too
		}
		if !known {
			i = len(out)
			seen[pid], out = i, append(out, LockHolder{PID: pid})
		}
		if pid != 0 && !out[i].Verified {
			out[i].Verified = h.has(pid, l.Start)
		}
		if l.Start > s.from {
			todo = append(todo, span{s.from, l.Start})
		}
		end := l.Start + l.Len
		if l.Len != 0 && end < math.MaxInt64 && (s.to == 0 || end < s.to) {
			todo = append(todo, span{end, s.to})
		}
	}
	if kept && len(out) == 0 {
		out = append(out, LockHolder{}) // fork children of processes that have ended
	}
	return out
}

// WaitUnlocked returns when no process has a byte of a region's file locked for writing, by a
// descriptor of the file. It waits in the kernel, for one process after the other, and holds
// nothing that a process needs which joins meanwhile (waitLock). This process must not be a
// member of the job.
func WaitUnlocked(fd int) error {
	for {
		l := unix.Flock_t{Type: unix.F_RDLCK}
		if err := unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l); err != nil || l.Type == unix.F_UNLCK {
			return err
		}
		l = waitLock(l.Start)
		for {
			err := unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, &l)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			break
		}
		l = unix.Flock_t{Type: unix.F_UNLCK}
		if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &l); err != nil {
			return err
		}
	}
}

// waitLock is the lock by which the end of one is waited for that begins at an offset. It is had
// for a moment when that one has gone. So it is of one slot at most, with both of its bytes: a
// process that joins meanwhile takes another slot, as it does beside others that join, and none
// has the first byte and misses the second.
func waitLock(at int64) unix.Flock_t {
	if slot := (at - slotsOffset) / slotSize; at >= slotsOffset && slot < abi.Slots {
		if base := slotByte(int(slot), unix.F_RDLCK); at-base.Start < slotLocks {
			base.Len = slotLocks
			return base
		}
	}
	return unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}
}

// slotLocks is how many bytes of a slot are locked: slotByte's and filesByte's.
const slotLocks = 2

// LockedFD reports whether another process has a byte of a file locked for writing, by a descriptor of
// it: what WaitUnlocked waits for, and all that members of a job lock. A lock for reading is a waiter's,
// or that of a process which means to be taken for a member.
func LockedFD(fd int) bool {
	l := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) != nil || l.Type != unix.F_UNLCK
}
