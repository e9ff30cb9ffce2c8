package launch

import (
	"fmt"
	"os"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

// CreateForUser makes the job that a policy uses for all programs of a user. It is a standing job
// of root, whose limits only root can write. All users can enter its folder, none can write it, and
// only the user can access its region. The library finds the job by the UID (shim/userjob.h);
// nothing is mounted, and no variable names it. The given limits apply, which may be less than the
// plan's.
func (p Plan) CreateForUser(uid int, limits region.Limits) error {
	j, err := p.createFor(uid, job.OfUser(uid), limits)
	if err != nil {
		return err
	}
	return j.Stand()
}

// CreateRun makes a job like the user's beside it, for programs that the user starts with a
// separate ration. No process can be in it before Stand.
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

// Stand lets processes join a new job, and drops this process's lock.
func (j *Job) Stand() error {
	// Change the folder first: a process that sees the last file of Stand must be able to enter the
	// folder.
	j.Lock.ShowInfo()
	return j.standAfter(os.Chmod(j.Lock.Folder, 0o755))
}

// Limits returns the limits that the plan gives a job on this machine. driver is nil if there is
// none; then missing says why.
func (p Plan) Limits(driver *gpu.Driver, missing error) (region.Limits, error) {
	p.standing = true
	return p.limits(driver, missing)
}

// KnownDevices returns the cached list of this machine's devices. The error is gpu.ErrNoDriver if
// there is none.
func KnownDevices() (*gpu.Driver, error) { return gpu.Known(DevicesFile()) }
