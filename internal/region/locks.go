package region

import (
	"math"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// A region of another layout version cannot be read, but its processes can be found: in every
// version each has locked a byte of the file, and the kernel reports which process that is.

// maxLockLooks bounds the queries for the locks of one file. That is enough for twice as many locks
// as a region has slots.
const maxLockLooks = 4096

// LockHolder is a process that has locked bytes of a region's file.
type LockHolder struct {
	PID      int  // as this process sees it; 0 if it is not visible
	Verified bool // its own descriptors have the lock; otherwise the PID may have been reused
}

// LockHolders returns the processes that have locked any byte of a file for writing, whatever its
// content. The file is in the folder dir; path is for messages.
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

// all returns the processes that have locked any byte of the file for writing. It makes at most
// looks queries, while the budget lasts, and finds at least one process if there is any.
func (h *holders) all(looks int) (out []LockHolder) {
	f, seen := h.f, map[int]int{} // index by PID
	kept := false
	ask := func(from, to int64) (unix.Flock_t, bool) { // to: 0 means the end of any file
		l := unix.Flock_t{Type: unix.F_RDLCK, Start: from}
		if to != 0 {
			l.Len = to - from
		}
		looks--
		return l, unix.FcntlFlock(uintptr(f.number()), unix.F_GETLK, &l) == nil && l.Type != unix.F_UNLCK
	}
	// The kernel reports one lock in a range, not the first. So query the parts before and after it
	// in turn.
	type span struct{ from, to int64 }
	for todo := []span{{0, 0}}; len(todo) > 0 && looks > 0 && (len(out) == 0 || h.left()); {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		l, locked := ask(s.from, s.to)
		if !locked {
			continue
		}
		pid := max(0, int(l.Pid)) // -1 means a lock of an open file
		i, known := seen[pid]
		if l.Pid < 0 {
			kept, known = true, true // usually the process that holds it also has a lock of its own
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

// WaitUnlocked returns when no process has locked a byte of a region's file for writing, given a
// descriptor of the file. It blocks in the kernel, for one process after the other, and holds no
// lock that a joining process needs (waitLock). This process must not be a member of the job.
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

// waitLock returns the lock to block on until another lock, which begins at an offset, is released.
// This process then holds it for a moment. So it covers at most one slot, with both of its bytes: a
// process that joins at that moment takes another slot, and no process gets the first byte without
// the second.
func waitLock(at int64) unix.Flock_t {
	if slot := (at - slotsOffset) / slotSize; at >= slotsOffset && slot < abi.Slots {
		if base := slotByte(int(slot), unix.F_RDLCK); at-base.Start < slotLocks {
			base.Len = slotLocks
			return base
		}
	}
	return unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}
}

// slotLocks is the number of bytes of a slot that are locked: slotByte and filesByte.
const slotLocks = 2

// LockedFD reports whether another process has locked a byte of a file for writing, given a
// descriptor of it. Members of a job lock only for writing, and WaitUnlocked waits for such locks.
// A read lock belongs to a waiter, or to a process that pretends to be a member.
func LockedFD(fd int) bool {
	l := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) != nil || l.Type != unix.F_UNLCK
}
