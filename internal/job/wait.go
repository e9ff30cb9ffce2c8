package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/inotify"
	"ration/internal/region"
	"ration/internal/safepath"
)

// Wait returns when the job has ended: no process of its command runs, and none that has
// joined it lives. It waits in the kernel, for the locks that those processes hold. end is how
// the command ended, or nil where no launcher stayed to see it. A later job of the same name is
// another one.
func Wait(j Job) (end *End, err error) {
	dir, err := safepath.OpenFolder(filepath.Dir(j.Path))
	if err != nil {
		return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
	}
	defer unix.Close(dir)
	name := filepath.Base(j.Path)
	// All are opened first: they say what there is to know when the job has been removed, and
	// while one is open, no other file has its number.
	open := func(name string, flags int) (int, error) {
		fd, err := safepath.OpenAt(dir, name, flags, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("waiting for %s: opening %s: %w", j.Title(), name, err)
		}
		return fd, nil
	}
	file, err := open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer closeIf(file)
	alive, err := open(aliveName, unix.O_RDWR) // an exclusive lock needs the right to write
	if err != nil {
		return nil, err
	}
	defer closeIf(alive)
	info, err := open(infoName, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer closeIf(info)
	var st unix.Stat_t
	if file >= 0 {
		if err := unix.Fstat(file, &st); err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
		}
	}
	if file >= 0 {
		replaced, stop, err := watchRemovals(dir)
		if err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
		}
		defer stop()
		same := func() bool {
			current, err := identityIn(dir, name)
			return err == nil && current == FileOf(&st)
		}
		unlocked := make(chan error, 1)
		lockedFile, err := dup(file)
		if err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
		}
		lockedAlive, err := dup(alive)
		if err != nil {
			closeIf(lockedFile)
			return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
		}
		go func() { unlocked <- waitUnused(lockedAlive, lockedFile, same) }()
		for done := false; !done && same(); {
			select {
			case err := <-unlocked:
				if err != nil {
					return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
				}
				done = true
			case <-replaced: // something in the folder was removed: look again
			}
		}
	} else if alive >= 0 {
		if err := waitFor(alive); err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", j.Title(), err)
		}
	}
	if info >= 0 {
		_, _, end = readInfo(info)
	}
	return end, nil
}

// waitUnused returns when no process uses the job and none has its region locked, or when the
// region is another by then. It closes the descriptors: it may go on waiting, for the next job of
// the name, when nobody waits for it any more.
func waitUnused(alive, file int, same func() bool) error {
	defer closeIf(alive)
	defer closeIf(file)
	again := Backoff{First: time.Millisecond, Last: time.Second}
	for {
		began := time.Now()
		if alive >= 0 {
			if err := waitFor(alive); err != nil {
				return err
			}
		}
		if err := region.WaitUnlocked(file); err != nil {
			return err
		}
		// A process of the command may have joined, or another been launched in the job
		// (--join), while the other lock was waited for.
		if !same() || (alive < 0 || !inUseBy(alive)) && !region.LockedFD(file) {
			return nil
		}
		// Whoever was handed a descriptor of a file can lock just what is not waited for here, such as
		// all but waitByte. Then the kernel lets nobody wait, and it is looked again.
		sleep(again.After(time.Since(began)))
	}
}

// sleep is another one in tests.
var sleep = time.Sleep

// watchRemovals sends a value after something in a folder, or the folder itself, was removed. Waiting
// for the locks is not enough: the next job of the name may lock its files first.
func watchRemovals(dir int) (removed <-chan struct{}, stop func(), err error) {
	w, err := inotify.New()
	if err != nil {
		return nil, nil, err
	}
	if _, err := w.Add(dir, unix.IN_DELETE|unix.IN_DELETE_SELF|unix.IN_MOVED_FROM|unix.IN_ATTRIB); err != nil {
		w.Close()
		return nil, nil, err
	}
	out := make(chan struct{}, 1)
	go func() {
		for {
			if _, err := w.Read(); err != nil {
				return
			}
			select {
			case out <- struct{}{}:
			default: // the receiver has not looked since the last value
			}
		}
	}()
	return out, w.Close, nil
}

// dup returns another descriptor of the same open file; -1 for -1.
func dup(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func closeIf(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// waitFor returns when no process uses the job, creates or removes it, by a descriptor of the
// file that those lock.
func waitFor(fd int) error {
	lock := unix.Flock_t{Type: exclusive, Start: waitByte, Len: 1}
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLKW, &lock)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			lock.Type = unix.F_UNLCK
			err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
		}
		return err
	}
}
