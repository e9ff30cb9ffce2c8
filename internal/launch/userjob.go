package launch

import (
	"fmt"
	"os"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

// CreateForUser makes the job in which a policy has all programs of a user: a standing job of
// root's, whose limits only root can write. Its folder is one that all users can enter and none
// can write, and its region is the user's alone. The library finds it by the user
// (shim/userjob.h); nothing is mounted, and no variable names it. The job has these limits, which
// may be less than the plan's.
func (p Plan) CreateForUser(uid int, limits region.Limits) error {
	j, err := p.createFor(uid, job.OfUser(uid), limits)
	if err != nil {
		return err
	}
	return j.Stand()
}

// CreateRun makes a job beside the user's, in the same way, for what a user starts with a ration of
// its own. No process can be in it before Stand.
func (p Plan) CreateRun(uid int, name string, limits region.Limits) (*Job, error) {
	return p.createFor(uid, job.RunOfUser(uid, name), limits)
}

func (p Plan) createFor(uid int, name string, limits region.Limits) (*Job, error) {
	if os.Geteuid() != 0 || uid == 0 {
		return nil, fmt.Errorf("making a job for user %d: %w (only root makes them, for others)", uid, os.ErrPermission)
	}
	p.Name, p.owner, p.given = name, uid, &limits
	p.standing, p.Command, p.Join, p.Keep = true, nil, false, true
	j := &Job{keep: true}
	if err := p.make(j); err != nil {
		return nil, err
	}
	return j, nil
}

// Stand lets processes into a job that is made, and drops this process's lock.
func (j *Job) Stand() error {
	// The folder first: a process that finds the job made, by the last file that Stand writes, can
	// enter it.
	return j.standAfter(os.Chmod(j.Lock.Folder, 0o755))
}

// Limits returns the limits that the plan gives a job on this machine. driver is nil where there
// is none, for the reason missing.
func (p Plan) Limits(driver *gpu.Driver, missing error) (region.Limits, error) {
	p.standing = true
	return p.limits(driver, missing)
}

// KnownDevices returns the devices of this machine, as they are remembered. The error is
// gpu.ErrNoDriver where there are none.
func KnownDevices() (*gpu.Driver, error) { return gpu.Known(DevicesFile()) }
