package launch

import (
	"errors"
	"fmt"
	"os"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

// CreateForUser makes the job in which a policy has all programs of a user: a standing job of
// root's, whose limits only root can write. Its folder is one that all users can enter and none
// can write, and its region is the user's alone. The library finds it by the user
// (shim/userjob.h); nothing is mounted, and no variable names it.
func (p Plan) CreateForUser(uid int) error {
	if os.Geteuid() != 0 || uid == 0 {
		return fmt.Errorf("making a job for user %d: %w (only root makes them, for others)", uid, os.ErrPermission)
	}
	p.Name, p.owner = job.OfUser(uid), uid
	p.standing, p.Command, p.Join, p.Keep = true, nil, false, true
	j := &Job{keep: true}
	if err := p.make(j); err != nil {
		return err
	}
	// The folder first: a process that finds the job made, by the last file that Stand writes, can
	// enter it.
	err := os.Chmod(j.Lock.Folder, 0o755)
	if err == nil {
		err = j.Lock.Stand(j.created, containerLibrary)
	}
	if err != nil {
		j.Discard()
		return err
	}
	j.Lock.Release()
	return nil
}

// Limits returns the limits that the plan gives a job on this machine. driver is nil where there
// is none, for the reason missing.
func (p Plan) Limits(driver *gpu.Driver, missing error) (region.Limits, error) {
	p.standing = true
	return p.limits(driver, missing)
}

// KnownDevices returns the devices of this machine, as they are remembered. There may be none:
// gpu.ErrNoDriver.
func KnownDevices() (*gpu.Driver, error) {
	driver, err := gpu.Known(DevicesFile())
	if err != nil && !errors.Is(err, gpu.ErrNoDriver) {
		return nil, err
	}
	return driver, err
}
