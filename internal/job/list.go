package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"ration/internal/limit"
	"ration/internal/region"
	"ration/internal/safepath"
)

// Job names a job, which may have ended.
type Job struct {
	Name string // empty for a region outside the folder of jobs
	Path string // of its region
}

// WellKnown is the folder in which a program finds its job under ration run --keep.
const WellKnown = "/run/ration/job"

// List returns this user's jobs, and others that this process may be in: at EnvRegion, at WellKnown, and
// this user's job and runs under a policy.
func List() ([]Job, error) {
	var jobs []Job
	folder := Folder()
	entries, err := os.ReadDir(folder)
	switch {
	case err == nil:
		if err := checkTrusted(folder); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("listing jobs: %w (name another folder in %s)", err, EnvFolder)
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name(), RegionName)
		if limit.CheckName("job", e.Name()) != nil || !safepath.Exists(path) {
			continue
		}
		jobs = append(jobs, Job{Name: e.Name(), Path: path})
	}
	paths := []string{os.Getenv(EnvRegion), filepath.Join(WellKnown, RegionName), OfUserPath(os.Getuid())}
	for _, run := range RunsOf(os.Getuid()) {
		paths = append(paths, run.Path)
	}
	for _, path := range paths {
		if path != "" && safepath.Exists(path) && !contains(jobs, path) {
			jobs = append(jobs, Job{Path: path})
		}
	}
	return jobs, nil
}

// EndedOrNotBegun reports whether the error of opening a region means that its job was removed or has not
// begun: the region does not exist, or no process has initialised it.
func EndedOrNotBegun(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, region.ErrInit)
}

// contains reports whether path is the region of one of the jobs.
func contains(jobs []Job, path string) bool {
	own, err := os.Stat(path)
	if err != nil {
		return false
	}
	for _, j := range jobs {
		if st, err := os.Stat(j.Path); err == nil && os.SameFile(own, st) {
			return true
		}
	}
	return false
}
