package job

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// Errors of Remove. Nothing was removed when one of them is returned.
var (
	// ErrLiving is returned, as a *LivingError, for a job with living processes.
	ErrLiving = errors.New("job has living processes")
	// ErrNotBegun is returned for a job that no process has joined yet.
	ErrNotBegun = errors.New("no process has joined the job yet")
)

// LivingError is returned for a job that was not removed. It matches ErrLiving.
type LivingError struct {
	Job    Job
	Living []region.Process // empty if all that is known is that the region is locked
}

// Error names the processes. It may look at all processes of the machine for that.
func (e *LivingError) Error() string {
	living := e.Living
	if len(living) == 0 {
		living = lockers(e.Job.Path)
	}
	return fmt.Sprintf("removing %s: %v: %s (end them first)", e.Job.Title(), ErrLiving, namesText(living))
}

// maxNamed is how many processes a message names.
const maxNamed = 8

// processText describes a living process by the PID and name from the kernel. The reader of the
// message may be about to kill it, and a job's region could name any process.
func processText(p region.Process) string {
	if p.Seen == 0 {
		return fmt.Sprintf("one that cannot be seen from here (it calls itself pid %d, %s)", p.PID, p.Name)
	}
	name := p.Name
	if _, kernel, _, err := proc.Owner(p.Seen); err != nil {
		name = "it calls itself " + name
	} else if !proc.CalledBy(p.Seen, name, kernel) {
		name = termtext.Printable(kernel)
	}
	return fmt.Sprintf("pid %d (%s)", p.Seen, name)
}

func (e *LivingError) Unwrap() error { return ErrLiving }

// Remove removes an ended job: its folder or, for a job without a name, its region and the limits
// file beside it. With force it also removes a job that no process has joined, or that cannot be
// read. It never removes a job with living processes: they would keep using its limit beside the
// next job of that name.
func Remove(j Job, force bool) error {
	if force && AllUsers() && filepath.Dir(filepath.Dir(j.Path)) == RootFolder {
		_, _ = safepath.Uncover(j.Path) // what follows fails if it could not
	}
	if err := CheckRemovable(j, force); err != nil {
		return err
	}
	if j.Name == "" {
		return removeRegion(j.Path)
	}
	l, err := acquire(j.Name, exclusive) // from now on no command can be launched in it
	if force && (errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO)) {
		// It is not a regular file, so no process holds a lock on it.
		_ = os.RemoveAll(filepath.Join(filepath.Dir(j.Path), aliveName))
		l, err = acquire(j.Name, exclusive)
	}
	if errors.Is(err, ErrInUse) { // the job came into use after the check
		return &inUseError{j}
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	defer l.Release()
	if u, _ := inspect(j); len(u.living) > 0 || u.locked { // a process joined after the check
		return &LivingError{j, u.living}
	}
	if err := removeFolder(l.Folder); err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	return nil
}

// removal lists the steps that remove a job's folder. The file that makes it a standing job is
// removed first: if the removal is interrupted, the rest must not look like a job that programs can
// join.
var removal = []func(folder string) error{
	func(folder string) error {
		_ = os.Remove(filepath.Join(folder, CreatedName)) // if this fails, removing the folder fails too
		_ = os.Remove(filepath.Join(folder, LeavingName)) // otherwise the job could come back without its limits
		return nil
	},
	func(folder string) error { endLimits(folder); return nil },
	func(folder string) error { unmount(folder); return nil },
	func(folder string) error { _ = removeRegionOf(folder); return nil }, // or os.RemoveAll returns the error
	os.RemoveAll,
}

// removeRegionOf removes the region of a job's folder. It goes before the file that says what the job is: a region
// without that file would look like another job, of another name for a run of a policy.
func removeRegionOf(folder string) error { return os.Remove(filepath.Join(folder, RegionName)) }

// removeFolder removes a job's folder.
func removeFolder(folder string) error {
	for _, step := range removal {
		if err := step(folder); err != nil {
			return err
		}
	}
	return nil
}

// endLimits sets an operator's limits to 0, so that unknown processes of the job get no more
// memory: processes that have closed the inherited descriptor and have not joined yet. They may
// have the files mounted in their namespace.
func endLimits(folder string) {
	if l, err := region.OpenOperatorLimits(filepath.Join(folder, RegionName)); err == nil {
		// Ignore the error: a user who may not write the limits may not remove the job's files
		// either, and the removal that follows returns that error.
		_ = l.End()
	}
}

// removeRegion removes a region outside the folder of jobs, and the limits beside it. It uses one
// descriptor of their folder, so that it removes the files that it has checked.
func removeRegion(path string) error {
	dir, writer, err := safepath.OpenFolderOf(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	defer unix.Close(dir)
	base := filepath.Base(path)
	// The path may lead to any file: force is for damaged regions, not for other files.
	if err := region.CheckRemovable(dir, base); err != nil {
		return fmt.Errorf("removing %s: %w (ration removes only what it made)", path, err)
	}
	if err := checkFolderOf(base, dir, writer); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	if err := unix.Unlinkat(dir, base, 0); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	if err := unix.Unlinkat(dir, base+region.LimitsSuffix, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %s: %w", path+region.LimitsSuffix, err)
	}
	return nil
}

// checkFolderOf keeps root from removing a file that another user chose. If one user can change the
// path, the folder and the file must belong to that user. If several can, nothing is removed.
func checkFolderOf(base string, dir, writer int) error {
	var folder, file unix.Stat_t
	if err := errors.Join(unix.Fstat(dir, &folder), safepath.StatAt(dir, base, &file)); err != nil {
		return err
	}
	shared := folder.Mode&0o022 != 0 && (folder.Mode&unix.S_ISVTX == 0 || file.Uid != 0)
	led := writer == safepath.Several || writer != 0 && (int(folder.Uid) != writer || int(file.Uid) != writer)
	if os.Geteuid() == 0 && (shared || led) {
		return fmt.Errorf("%w: other users can change the path (the folder belongs to user %d, with mode %04o, and the file to user %d; remove it as that user)",
			ErrFolder, folder.Uid, folder.Mode&0o7777, file.Uid)
	}
	return nil
}

// inUseError is returned for a job that is locked. It matches ErrInUse.
type inUseError struct{ job Job }

// Error names the processes, as that of LivingError.
func (e *inUseError) Error() string {
	_, by := runningBy(e.job)
	by = cmp.Or(by, "by a command of ration run")
	if open := openers(filepath.Join(filepath.Dir(e.job.Path), aliveName)); len(open) > 0 {
		by += ": " + namesText(open)
	}
	return fmt.Sprintf("removing %s: %v %s (end them first)", e.job.Title(), ErrInUse, by)
}

func (e *inUseError) Unwrap() error { return ErrInUse }

// CheckRemovable returns the error that Remove would, or nil.
func CheckRemovable(j Job, force bool) error {
	u, err := inspect(j)
	running := j.Name != "" && Running(j)
	switch {
	case len(u.living) > 0:
		return &LivingError{j, u.living}
	case u.locked:
		return &LivingError{j, nil} // by a lock on a slot that is free
	case running:
		return &inUseError{j}
	case force:
		return nil
	case errors.Is(err, region.ErrForeign) && j.Name == "":
		return fmt.Errorf("removing %s: %w", j.Title(), err)
	case errors.Is(err, region.ErrVersion):
		return nil // in all versions, processes lock the region and launchers lock the job
	case err != nil && !EndedOrNotBegun(err):
		return fmt.Errorf("removing %s: %w (--force removes it all the same)", j.Title(), err)
	case !u.begun:
		return fmt.Errorf("removing %s: %w: it may be about to begin (--force removes it all the same)", j.Title(), ErrNotBegun)
	}
	return nil
}

// StartTimeout is how long a job without a process counts as starting: a program can spend minutes
// on its imports before it first uses a device.
const StartTimeout = time.Hour

// Ended reports whether the job has ended and only its region is left.
func Ended(j Job, now time.Time) bool {
	u, err := inspect(j)
	if u.locked || len(u.living) > 0 || Running(j) || isStanding(j) {
		return false
	}
	if err != nil { // the region of an ended job may be damaged
		return j.Name != "" && u.begun
	}
	return u.begun || now.Sub(u.created) > StartTimeout
}

// use is what decides whether a job may be removed.
type use struct {
	living  []region.Process // those that are not dead
	locked  bool             // a process has a byte of the region locked
	begun   bool             // a process has joined the job, or ration run has launched it
	created time.Time
}

// inspect returns how the job is used. If its region cannot be read, it sets only begun and the
// locks.
func inspect(j Job) (use, error) { return inspectWith(j, nil) }

// inspectWith is inspect, and queries the kernel about processes while left returns true. nil means
// the default of a region.
func inspectWith(j Job, left func() bool) (u use, err error) {
	u.begun = j.Name != "" && safepath.Exists(filepath.Join(filepath.Dir(j.Path), aliveName))
	r, err := region.OpenReadOnly(j.Path)
	if err != nil {
		u.locked = region.Locked(j.Path)
		if u.locked {
			u.living = holders(j.Path)
		}
		return u, err
	}
	defer r.Close()
	r.SetAskBudget(left)
	all, err := r.Processes()
	u.locked = region.Locked(j.Path) // also counts a lock on a slot that the region does not show
	if err != nil {                  // the user has cut the file
		return u, err
	}
	c, err := r.Counters()
	if u.locked { // without a lock no process lives, not even one that could not be queried in time
		u.living = slices.DeleteFunc(all, func(p region.Process) bool { return p.Dead })
	}
	u.begun, u.created = u.begun || c.Claims > 0, time.Unix(0, r.Created())
	return u, err
}
