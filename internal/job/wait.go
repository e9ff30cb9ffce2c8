package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/region"
	"ration/internal/safepath"
)

// Wait returns when the job has ended: no process of its command runs, and no process that has
// joined it is alive. It blocks on the locks that those processes hold. end is how the command
// ended. It is nil if the job has no command (launched is false), or if its launcher was killed
// before it wrote that down. A later job of the same name is another job.
func Wait(j Job) (end *End, launched bool, err error) {
	if end, launched, err = wait(j, true); err != nil {
		return nil, false, fmt.Errorf("waiting for %s: %w", j.Title(), err)
	}
	return end, launched, nil
}

// TryWait is Wait for a job that has ended already. Otherwise it returns an error at once. If a later command of its name was
// not started, end is of that command.
func TryWait(j Job) (end *End, launched bool, err error) { return wait(j, false) }

func wait(j Job, block bool) (end *End, launched bool, err error) {
	dir, err := safepath.OpenFolder(filepath.Dir(j.Path))
	if err != nil {
		return nil, false, err
	}
	defer unix.Close(dir)
	// Open all files first: they can be read after the job was removed, and no other file gets
	// their inode numbers while they are open. An exclusive lock on alive needs write permission.
	open := func(name string, flags int) (int, error) {
		fd, err := safepath.OpenAt(dir, name, flags, 0)
		if _, standing := standingIn(dir); standing && name == aliveName && errors.Is(err, unix.EACCES) {
			return -1, nil // root has it, and locks it only while the job is made or removed
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("opening %s: %w", name, err)
		}
		return fd, nil
	}
	alive, err := open(aliveName, unix.O_RDWR)
	if err != nil {
		return nil, false, err
	}
	defer closeIf(alive)
	// The region and the record of the command are there when the job has been made.
	for again := (Backoff{First: time.Millisecond, Last: 50 * time.Millisecond}); block && alive >= 0 && beingMade(alive); {
		sleep(again.After(0))
	}
	name := filepath.Base(j.Path)
	file, err := open(name, unix.O_RDONLY)
	if err != nil {
		return nil, false, err
	}
	defer closeIf(file)
	info, err := open(infoName, unix.O_RDONLY)
	if err != nil {
		return nil, false, err
	}
	defer closeIf(info)
	_, standing := standingIn(dir)
	switch {
	case !block && (alive >= 0 && inUseBy(alive) || file >= 0 && region.LockedFD(file)):
		err = errNotEnded
	case file < 0 && info < 0:
		err = unix.ENOENT // its launcher has made nothing else, as on a full disk
	case !block:
	case file >= 0:
		err = waitRegion(dir, name, alive, file)
	case alive >= 0:
		err = waitFor(alive)
	}
	if err == nil && info >= 0 {
		err = waitRun(dir, info, filepath.Base(filepath.Dir(j.Path)), block)
	}
	if err == nil && info >= 0 {
		var started Info
		_, started, end = readInfo(info)
		launched = len(started.Command) > 0
		if end != nil && end.Left { // the job has ended just now, if this process has waited for that
			end.Ended = 0
			if block {
				end.Ended = time.Now().UnixNano()
			}
		}
	} else if err == nil {
		launched = alive >= 0 && !standing // by a launcher that could not record it
	}
	if later := readNotStarted(dir); err == nil && !block && later != nil {
		end, launched = later, true
	}
	return end, launched, err
}

var errNotEnded = errors.New("the job has not ended")

// waitRun waits for the end of the run that a job is the record of: other commands may have joined it. The arguments are as
// for openRun, and as for wait.
func waitRun(dir, info int, name string, block bool) error {
	run, _ := openRun(dir, info, name)
	if run < 0 {
		return nil
	}
	defer unix.Close(run)
	file, err := safepath.OpenAt(run, RegionName, unix.O_RDONLY, 0)
	switch {
	case errors.Is(err, unix.ENOENT): // the service has removed it
		return nil
	case err != nil:
		return fmt.Errorf("opening the region of its run: %w", err)
	}
	defer unix.Close(file)
	if !block && region.LockedFD(file) {
		return errNotEnded
	}
	if !block {
		return nil
	}
	return waitRegion(run, RegionName, -1, file)
}

// beingMade reports whether a process creates or removes the job, by a descriptor of alive.
func beingMade(alive int) bool {
	l := wholeFile(shared) // conflicts with an exclusive lock only
	return unix.FcntlFlock(uintptr(alive), unix.F_OFD_GETLK, &l) == nil && l.Type == exclusive && !isWaiters(&l)
}

// waitRegion waits until no process uses the job, or until its region was removed or replaced.
func waitRegion(dir int, name string, alive, file int) error {
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return err
	}
	removed, stop, err := watchRemovals(dir)
	if err != nil {
		return err
	}
	defer stop()
	same := func() bool {
		current, err := identityIn(dir, name)
		return err == nil && current == FileOf(&st)
	}
	lockedFile, err := dup(file)
	if err != nil {
		return err
	}
	lockedAlive, err := dup(alive)
	if err != nil {
		closeIf(lockedFile)
		return err
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- waitUnused(lockedAlive, lockedFile, same) }()
	for same() {
		select {
		case err := <-unlocked:
			return err
		case <-removed:
		}
	}
	return nil
}

// waitUnused returns when no process uses the job or holds a lock of its region, or when the region
// was replaced. It closes the descriptors itself, because it may still be blocked after its caller
// has returned, waiting for the next job of that name.
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
		// While it waited for the second lock, a process may have joined, or another command may
		// have been launched in the job (--join).
		if !same() || (alive < 0 || !inUseBy(alive)) && !region.LockedFD(file) {
			return nil
		}
		// A process with a descriptor of a file can lock everything except the bytes that this
		// function waits for. Then waiting returns at once, and this pause prevents a busy loop.
		sleep(again.After(time.Since(began)))
	}
}

// sleep is a variable for tests.
var sleep = time.Sleep

// watchRemovals sends a value after the folder or something in it was removed. Waiting for the
// locks is not enough, because the next job of that name may lock its files first.
func watchRemovals(dir int) (removed <-chan struct{}, stop func(), err error) {
	w, err := safepath.NewWatcher()
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
			default: // the receiver has not read the last value yet
			}
		}
	}()
	return out, w.Close, nil
}

// dup duplicates a descriptor; -1 stays -1.
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

// waitFor returns when no process uses, creates or removes the job. fd is the file that those
// processes lock.
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
