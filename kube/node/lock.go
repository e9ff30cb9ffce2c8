package node

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The locks are of the kernel, so they end with their process. All are on the file STATE/lock:
//
//   - a shared lock on the file (flock), while any file of a claim is changed;
//   - a lock on one byte for each claim (fcntl), which is taken after it: calls for one claim wait
//     for each other, calls for two claims do not;
//   - a lock on the first byte, which is taken last: a claim is compared with the records of all
//     others, and its own record is written;
//   - an exclusive lock on the file, which Sweep takes without any other: no claim changes.
//
// The plugins of two versions may run at the same time during an upgrade. Older ones take only the
// exclusive lock.

// claimLock is the lock of a claim.
type claimLock struct{ file *os.File }

// bookingByte is the first byte; those of claims follow.
const bookingByte = 0

// lock takes the lock of a claim.
func (n *Node) lock(uid string) (*claimLock, error) {
	file, err := n.lockFile(unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	// Two claims that have the same byte wait for each other.
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid))
	const bytes = 1 << 62
	l := &claimLock{file}
	if err := l.setByte(unix.F_WRLCK, int64(1+hash.Sum64()%bytes)); err != nil {
		l.unlock()
		return nil, err
	}
	return l, nil
}

func (l *claimLock) unlock() { _ = l.file.Close() }

// reserve excludes all other claims from being recorded, until release is called.
func (l *claimLock) reserve() (release func(), err error) {
	if err := l.setByte(unix.F_WRLCK, bookingByte); err != nil {
		return nil, err
	}
	return func() { _ = l.setByte(unix.F_UNLCK, bookingByte) }, nil
}

// setByte locks or unlocks a byte. The lock belongs to the open file, not to the process, so that
// it works between goroutines too.
func (l *claimLock) setByte(kind int16, at int64) error {
	for {
		err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLKW, &unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return lockError(err)
		}
	}
}

// lockAll locks all claims, and returns a function that unlocks them.
func (n *Node) lockAll() (unlock func(), err error) {
	file, err := n.lockFile(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// lockFile opens the file of the locks, and locks it.
func (n *Node) lockFile(how int) (*os.File, error) {
	if err := os.MkdirAll(n.State, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of claims: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(n.State, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, lockError(err)
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, lockError(err)
	}
	return file, nil
}

func lockError(err error) error {
	if err != nil {
		return fmt.Errorf("locking the claims: %w", err)
	}
	return nil
}
