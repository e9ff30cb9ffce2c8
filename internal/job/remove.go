package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/region"
)

// Errors of Remove. Nothing was removed when one of them is returned.
var (
	// ErrLiving is returned, as a *LivingError, for a job with living processes.
	ErrLiving = errors.New("job has living processes")
	// ErrNotBegun is returned for a job that nobody has joined yet: it may be about
	// to begin.
	ErrNotBegun = errors.New("nobody has joined the job yet")
)

// LivingError is a job that was not removed. It matches ErrLiving.
type LivingError struct {
	Job    Job
	Living []Process
}

func (e *LivingError) Error() string {
	var who []string
	for _, p := range e.Living {
		who = append(who, fmt.Sprintf("pid %d (%s)", p.PID, p.Name))
	}
	return fmt.Sprintf("removing %s: %v: %s (end them first)", e.Job.Title(), ErrLiving, strings.Join(who, ", "))
}

func (e *LivingError) Unwrap() error { return ErrLiving }

// Remove removes a job that has ended: its folder, or, where it has none in the
// folder of jobs, its region and the limits beside it. force also removes one that
// nobody has joined, or that cannot be read; never one with living processes,
// which would go on without a limit that the next ones share.
func Remove(j Job, force bool) error {
	if err := ended(j, force); err != nil {
		return err
	}
	if j.Name == "" {
		// A path may be anything: --force is for regions that are broken, not for
		// files that are none.
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
	h, err := hold(j.Name, unix.F_WRLCK) // nobody launches into it from now on
	if err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	defer h.Release()
	if s := Look(j, false); len(s.living()) > 0 { // who slipped in between
		return &LivingError{j, s.living()}
	}
	if err := os.RemoveAll(h.Folder); err != nil {
		return fmt.Errorf("removing %s: %w", j.Name, err)
	}
	return nil
}

// ended says why a job cannot be removed.
func ended(j Job, force bool) error {
	s := Look(j, false)
	living := s.living()
	switch {
	case len(living) > 0:
		return &LivingError{j, living}
	case j.Name != "" && Running(j):
		return fmt.Errorf("removing %s: %w: what was launched in it still runs (end it first)", j.Title(), ErrInUse)
	case force:
		return nil
	case errors.Is(s.Err(), region.ErrForeign) && j.Name == "":
		return fmt.Errorf("removing %s: %w", j.Title(), s.Err())
	case s.Err() != nil && !errors.Is(s.Err(), fs.ErrNotExist) && !errors.Is(s.Err(), region.ErrInit):
		return fmt.Errorf("removing %s: %w (--force removes it all the same)", j.Title(), s.Err())
	case !s.begun():
		return fmt.Errorf("removing %s: %w: it may be about to begin (--force removes it all the same)", j.Title(), ErrNotBegun)
	}
	return nil
}

// begun says whether the job has had a life: a process joined it, or somebody
// launched it, which the lock on its folder then ends.
func (s *Status) begun() bool {
	return s.Claims > 0 || s.Job != "" && exists(filepath.Join(filepath.Dir(s.Path), aliveName))
}

func (s *Status) living() (living []Process) {
	for _, p := range s.Processes {
		if p.State != Dead {
			living = append(living, p)
		}
	}
	return living
}

// fresh is how long a job that nobody has joined, and nobody launched, may still be
// about to begin: a program can spend minutes on its imports before it first asks
// for a device.
const fresh = time.Hour

// Stale says whether a job has ended and only its region is left.
func (s *Status) Stale(now time.Time) bool {
	old := now.Sub(time.Unix(0, s.Created)) > fresh
	return s.Err() == nil && len(s.living()) == 0 && !Running(Job{s.Job, s.Path}) && (s.begun() || old)
}
