package launch

import (
	"errors"
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
