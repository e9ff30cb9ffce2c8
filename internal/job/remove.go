package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	Living []Process
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
	if s := Read(j, ReadOptions{}); len(s.living()) > 0 { // joined since the check
		return &LivingError{j, s.living()}
	}
	if err := os.RemoveAll(l.Folder); err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	return nil
}

// checkRemovable returns why a job must not be removed, or nil.
func checkRemovable(j Job, force bool) error {
	s := Read(j, ReadOptions{})
	living := s.living()
	switch {
	case len(living) > 0:
		return &LivingError{j, living}
	case j.Name != "" && Running(j):
		return fmt.Errorf("removing %s: %w: a command of ration run still runs in it (end it first)", j.Title(), ErrInUse)
	case force:
		return nil
	case errors.Is(s.Err(), region.ErrForeign) && j.Name == "":
		return fmt.Errorf("removing %s: %w", j.Title(), s.Err())
	case s.Err() != nil && !s.noRegion():
		return fmt.Errorf("removing %s: %w (--force removes it all the same)", j.Title(), s.Err())
	case !s.begun():
		return fmt.Errorf("removing %s: %w: it may be about to begin (--force removes it all the same)", j.Title(), ErrNotBegun)
	}
	return nil
}

// begun reports whether a process has joined the job, or ration run has launched it.
func (s *Status) begun() bool {
	return s.Claims > 0 || s.Job != "" && exists(filepath.Join(filepath.Dir(s.Path), aliveName))
}

// living returns the processes that are not dead.
func (s *Status) living() (living []Process) {
	for _, p := range s.Processes {
		if p.State != Dead {
			living = append(living, p)
		}
	}
	return living
}

// startTimeout is how long a job that has not begun may still be about to begin: a
// program can spend minutes on its imports before it first uses a device.
const startTimeout = time.Hour

// Stale reports whether the job has ended and only its region is left.
func (s *Status) Stale(now time.Time) bool {
	old := now.Sub(time.Unix(0, s.Created)) > startTimeout
	return s.Err() == nil && len(s.living()) == 0 && !Running(Job{s.Job, s.Path}) && (s.begun() || old)
}
