package region

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
)

// A process that waits for the end of one, and has its lock for a moment, is in nobody's way: here
// it has it all the while. A lock of the whole file would be.
func TestWaitLockLetsOthersJoin(t *testing.T) {
	r := open(t, MiB)
	f, err := os.Open(r.path)
	must(t, err)
	defer f.Close()
	set := func(l unix.Flock_t) { must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)) }
	first := int(r.m.Header.Ticket % abi.ClaimWindow) // which Claim tries first
	for _, l := range []unix.Flock_t{waitLock(slotByte(first, 0).Start), waitLock(filesByte(first, 0).Start)} {
		expect.True(t, covers(l, slotByte(first, 0)) && covers(l, filesByte(first, 0)), l, "is not of both bytes")
		set(l)
	}
	s, err := r.Claim("joins")
	expect.True(t, err == nil && s.Index() != first, "joined as", s, err)
	set(unix.Flock_t{Type: unix.F_UNLCK})
	set(unix.Flock_t{Type: unix.F_RDLCK, Len: slotByte(s.Index(), 0).Start})
	set(unix.Flock_t{Type: unix.F_RDLCK, Start: slotByte(s.Index(), 0).Start + 1})
	_, err = r.Claim("cannot")
	expect.True(t, errors.Is(err, ErrLocked), err, "where all is locked")
}

func covers(l, of unix.Flock_t) bool { return l.Start <= of.Start && of.Start+of.Len <= l.Start+l.Len }

// What is waited for is never more than one slot, wherever a lock is.
func TestWaitLock(t *testing.T) {
	last := slotByte(abi.Slots-1, 0).Start
	for _, at := range []int64{0, slotsOffset - 1, slotsOffset, slotsOffset + 1, slotsOffset + 2, last, last + 1, last + 2, last + slotSize, 1 << 40} {
		l := waitLock(at)
		expect.True(t, l.Len >= 1 && l.Len <= 2 && l.Start <= at && at < l.Start+l.Len && l.Type == unix.F_RDLCK, "at", at, l)
	}
}

// What is waited for is what counts as locked: otherwise a process that locks the region for reading, as
// its user can, would have one that waits look without pause.
func TestLockForReadingIsNoMember(t *testing.T) {
	r := open(t, MiB)
	f, err := os.Open(r.path)
	must(t, err)
	defer f.Close()
	stranger, err := os.OpenFile(r.path, os.O_RDWR, 0)
	must(t, err)
	defer stranger.Close()
	for kind, counts := range map[int16]bool{unix.F_RDLCK: false, unix.F_WRLCK: true} {
		l := unix.Flock_t{Type: kind}
		must(t, unix.FcntlFlock(stranger.Fd(), unix.F_OFD_SETLK, &l))
		expect.Equal(t, LockedFD(int(f.Fd())), counts, "a lock of kind", kind, "counts", !counts)
		if kind == unix.F_RDLCK {
			must(t, WaitUnlocked(int(f.Fd()))) // at once
		}
	}
}
