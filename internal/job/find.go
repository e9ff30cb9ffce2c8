package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ration/internal/limit"
)

// ErrNoJob is returned for a name or path at which there is no region.
var ErrNoJob = errors.New("no such job")

// Find finds the job that a person means: by its name, or, where that has a slash
// in it, by the path of its region.
func Find(what string) (Job, error) {
	if strings.ContainsRune(what, filepath.Separator) {
		if _, err := os.Lstat(what); err != nil {
			return Job{}, fmt.Errorf("%s: %w (%w)", what, ErrNoJob, err)
		}
		return byPath(what)
	}
	if err := limit.CheckName("", what); err != nil {
		return Job{}, err
	}
	jobs, err := List()
	if err != nil {
		return Job{}, err
	}
	var names []string
	for _, j := range jobs {
		if j.Name == what {
			return j, nil
		}
		if j.Name != "" {
			names = append(names, j.Name)
		}
	}
	way := "there is none in " + Folder()
	if len(names) > 0 {
		way = "there are: " + strings.Join(names, ", ")
	}
	return Job{}, fmt.Errorf("%s: %w (%s)", what, ErrNoJob, way)
}

// byPath is the job whose region this is: by its name, where it is in the folder
// of jobs, so that all that protects a job protects it by that path too.
func byPath(path string) (Job, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		full = path
	}
	jobs, err := List()
	if err != nil {
		return Job{Path: path}, nil // a region somewhere else needs no folder of jobs
	}
	for _, j := range jobs {
		if j.Name != "" && j.Path == full {
			return j, nil
		}
	}
	return Job{Path: path}, nil
}

// Reserved says whether ration keeps something else by that name in the folder of
// jobs.
func Reserved(name string) bool { return name == "lib" || name == "job" }

// Title is what a person calls the job.
func (j Job) Title() string {
	if j.Name != "" {
		return j.Name
	}
	return j.Path
}

// Title is what a person calls the job.
func (s *Status) Title() string { return Job{s.Job, s.Path}.Title() }

// FindFolder is Find, and also finds a job that has a folder but no region yet.
func FindFolder(what string) (Job, error) {
	j, err := Find(what)
	if errors.Is(err, ErrNoJob) && !strings.ContainsRune(what, filepath.Separator) && !Reserved(what) {
		if path, e := Region(what); e == nil && exists(filepath.Dir(path)) {
			return Job{what, path}, nil
		}
	}
	return j, err
}
