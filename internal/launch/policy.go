package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"ration/internal/job"
)

// InForceFile is there while a policy is in force. Package policy writes it, and the library looks
// for it (shim/userjob.c).
const InForceFile = "/etc/ration/in-force.toml"

// Ruled reports whether a policy has all programs of this process's user in one job, as
// userjob_ruled does in the library.
func Ruled() bool {
	if _, err := os.Lstat(InForceFile); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	uid := os.Getuid()
	_, err := os.Lstat(filepath.Join(job.RootFolder, job.OfUser(uid), job.ExemptName))
	return uid != 0 && err != nil
}

// joinUsers prepares a command that is in its user's job, as all programs of the user are, whatever
// ration run does. The job's limits are the user's: one of the command's own could not be kept, so
// it is refused (docs/adr/0013-one-job-for-each-user.md).
func (p Plan) joinUsers(j *Job) (_ *Job, err error) {
	name := ""
	switch {
	case p.Settings.Memory.IsSet(), p.Settings.Compute.IsSet(), p.Settings.ComputeMax.IsSet():
		name = "limits of its own"
	case p.Keep:
		name = "--keep"
	case p.Name != "":
		name = "--name"
	case p.FakeGPU != "":
		name = "--fake-gpu"
	}
	if name != "" {
		return nil, fmt.Errorf("%w: this machine's policy has all your programs in one, with one ration (ration policy show), which a job with %s would evade (leave that out; ration policy ask changes your ration)", ErrNested, name)
	}
	if j.path, err = findCommand(p.Command[0]); err != nil {
		return nil, err
	}
	j.environ, j.ruled = os.Environ(), true
	return j, nil
}

// Ruled reports whether the command is in its user's job, by a policy.
func (j *Job) Ruled() bool { return j.ruled }
