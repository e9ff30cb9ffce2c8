// Package job knows where regions live. Each job has a folder of its own, so that
// it can be handed to a container as a whole, in a folder that only its user can
// write:
//
//	/run/ration/JOB/region                    root's jobs
//	$XDG_RUNTIME_DIR/ration/JOB/region        a user's
//	${TMPDIR:-/tmp}/ration-UID/JOB/region     a user's who has no such folder
//
// RATION_DIR names another place. Wherever it is, a folder that somebody else
// could have planted is refused: a region says who may have how much.
package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
)

// Variables that say where regions are.
const (
	EnvFolder = "RATION_DIR"                      // the folder of all jobs
	EnvRegion = "CUDA_DEVICE_MEMORY_SHARED_CACHE" // the region of one job, by HAMi-core's name
)

// regionName is the region's in its job's folder.
const regionName = "region"

// ErrFolder is returned for a folder of jobs that is a link, a file or somebody
// else's.
var ErrFolder = errors.New("folder of jobs cannot be trusted")

// Folder is where this user's jobs are. It need not exist.
func Folder() string {
	if dir := os.Getenv(EnvFolder); dir != "" {
		return dir
	}
	uid := os.Geteuid()
	if uid == 0 {
		return "/run/ration"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "ration")
	}
	return filepath.Join(os.TempDir(), "ration-"+strconv.Itoa(uid))
}

// Region is the path of a job's region.
func Region(name string) (string, error) {
	if err := limit.CheckName("job", name); err != nil {
		return "", err
	}
	return filepath.Join(Folder(), name, regionName), nil
}

// Make makes a job's folder, for this user only, and returns the path at which
// its region can be opened. A folder that is already there will do.
func Make(name string) (string, error) {
	path, err := Region(name)
	if err != nil {
		return "", err
	}
	folder := Folder()
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return "", fmt.Errorf("making the folder of jobs: %w (name another in %s)", err, EnvFolder)
	}
	for _, dir := range []string{folder, filepath.Dir(path)} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("making the folder of jobs: %w (name another in %s)", err, EnvFolder)
		}
		if err := check(dir); err != nil {
			return "", err
		}
	}
	return path, nil
}

// check refuses a folder that is not one, or that somebody else may write.
func check(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	wrong := ""
	switch me := uint32(os.Geteuid()); {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		wrong = "is not a folder"
	case st.Uid != me && st.Uid != 0:
		wrong = fmt.Sprintf("belongs to user %d, not to %d", st.Uid, me)
	case st.Mode&0o022 != 0:
		wrong = fmt.Sprintf("can be written by others (mode %04o)", st.Mode&0o7777)
	default:
		return nil
	}
	return fmt.Errorf("folder %s %s: %w (remove it, or name another in %s)", dir, wrong, ErrFolder, EnvFolder)
}
