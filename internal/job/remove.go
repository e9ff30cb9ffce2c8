package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ration/internal/region"
)

// Errors of Remove. Nothing was removed when one of them is returned.
var (
	// ErrLiving is returned, as a *LivingError, for a job with living processes.
	ErrLiving = errors.New("job has living processes")
	// ErrNotBegun is returned for a job that no process has joined yet: it may be
	// about to begin.
	ErrNotBegun = errors.New("no process has joined the job yet")
)

// LivingError is returned for a job that was not removed. It matches ErrLiving.
type LivingError struct {
	Job    Job
	Living []region.Process
}

func (e *LivingError) Error() string {
	var living []string
	for _, p := range e.Living {
		living = append(living, fmt.Sprintf("pid %d (%s)", p.PID, p.Name))
	}
	return fmt.Sprintf("removing %s: %v: %s (end them first)", e.Job.Title(), ErrLiving, strings.Join(living, ", "))
}

func (e *LivingError) Unwrap() error { return ErrLiving }

// Remove removes a job that has ended: its folder, or for a job without a name its
// region and the limits file beside it. force also removes a job that no process has
// joined, or that cannot be read; never one with living processes, which would keep
// a limit of their own beside that of the next job with the name.
func Remove(j Job, force bool) error {
	if err := checkRemovable(j, force); err != nil {
		return err
	}
	if j.Name == "" {
		// A path may be of any file: force is for damaged regions, not for files that
		// are not regions.
		if !region.IsRegion(j.Path) {
			return fmt.Errorf("removing %s: %w (ration removes only what it made)", j.Path, region.ErrForeign)
		}
		if err := os.Remove(j.Path); err != nil {
			return fmt.Errorf("removing %s: %w", j.Path, err)
		}
		if err := os.Remove(j.Path + region.LimitsSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", j.Path+region.LimitsSuffix, err)
		}
		return nil
	}
	l, err := acquire(j.Name, exclusive) // no command is launched in it from now on
	if err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	defer l.Release()
	if u, _ := inspect(j); len(u.living) > 0 { // joined since the check
		return &LivingError{j, u.living}
	}
	if err := os.RemoveAll(l.Folder); err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	return nil
}

// checkRemovable returns why a job must not be removed, or nil.
func checkRemovable(j Job, force bool) error {
	u, err := inspect(j)
	switch {
	case len(u.living) > 0:
		return &LivingError{j, u.living}
	case j.Name != "" && Running(j):
		return fmt.Errorf("removing %s: %w: a command of ration run still runs in it (end it first)", j.Title(), ErrInUse)
	case force:
		return nil
	case errors.Is(err, region.ErrForeign) && j.Name == "":
		return fmt.Errorf("removing %s: %w", j.Title(), err)
	case err != nil && !EndedOrNotBegun(err):
		return fmt.Errorf("removing %s: %w (--force removes it all the same)", j.Title(), err)
	case !u.begun:
		return fmt.Errorf("removing %s: %w: it may be about to begin (--force removes it all the same)", j.Title(), ErrNotBegun)
	}
	return nil
}

// startTimeout is how long a job that has not begun may still be about to begin: a
// program can spend minutes on its imports before it first uses a device.
const startTimeout = time.Hour

// Ended reports whether the job has ended and only its region is left.
func Ended(j Job, now time.Time) bool {
	u, err := inspect(j)
	old := now.Sub(u.created) > startTimeout
	return err == nil && len(u.living) == 0 && !Running(j) && (u.begun || old)
}

// use is what decides whether a job may be removed.
type use struct {
	living  []region.Process // those that are not dead
	begun   bool             // a process has joined the job, or ration run has launched it
	created time.Time
}

// inspect returns what the job's region says of its use. Where it cannot be read,
// only begun is known.
func inspect(j Job) (u use, err error) {
	u.begun = j.Name != "" && exists(filepath.Join(filepath.Dir(j.Path), aliveName))
	r, err := region.OpenReadOnly(j.Path)
	if err != nil {
		return u, err
	}
	defer r.Close()
	all, err := r.Processes()
	if err != nil {
		return u, err
	}
	c, err := r.Counters()
	u.living = slices.DeleteFunc(all, func(p region.Process) bool { return p.Dead })
	u.begun, u.created = u.begun || c.Claims > 0, time.Unix(0, r.Created())
	return u, err
}
