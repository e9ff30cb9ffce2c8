package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
	"ration/internal/safepath"
)

// ErrNoJob is returned for a name or path at which there is no region.
var ErrNoJob = errors.New("no such job")

// Find returns a job by its name or, where the argument has a slash in it, by the
// path of its region.
func Find(nameOrPath string) (Job, error) {
	if strings.ContainsRune(nameOrPath, filepath.Separator) {
		return findByPath(nameOrPath)
	}
	if err := limit.CheckName("", nameOrPath); err != nil {
		return Job{}, err
	}
	jobs, err := List()
	if err != nil {
		return Job{}, err
	}
	var names []string
	for _, j := range jobs {
		if j.Name == nameOrPath {
			return j, nil
		}
		if j.Name != "" {
			names = append(names, j.Name)
		}
	}
	hint := "there is none in " + Folder()
	if len(names) > 0 {
		hint = "there are: " + strings.Join(names, ", ")
	}
	return Job{}, fmt.Errorf("%s: %w (%s)", nameOrPath, ErrNoJob, hint)
}

// findByPath returns the job whose region is at path. It has its name where it is one of
// those in the folder of jobs, by whatever path, so that the checks for named jobs apply
// to it.
func findByPath(path string) (Job, error) {
	own, err := identityOf(path)
	if err != nil {
		return Job{}, fmt.Errorf("%s: %w (%w)", path, ErrNoJob, err)
	}
	jobs, err := List()
	if err != nil {
		return Job{Path: path}, nil // a region elsewhere needs no folder of jobs
	}
	for _, j := range jobs {
		if id, err := identityOf(j.Path); j.Name != "" && err == nil && id == own {
			return j, nil
		}
	}
	return Job{Path: path}, nil
}

// identity is a file, by whatever path.
type identity struct{ dev, ino uint64 }

// identityOf returns which file is at path: a link, if it is one.
func identityOf(path string) (identity, error) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return identity{}, err
	}
	defer unix.Close(dir)
	return identityIn(dir, filepath.Base(path))
}

func identityIn(dir int, name string) (identity, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return identity{uint64(st.Dev), st.Ino}, err
}

// Reserved reports whether ration uses that name in the folder of jobs for something
// other than a job.
func Reserved(name string) bool {
	if _, is := UserOf(name); is {
		return true
	}
	if _, _, is := RunOf(name); is {
		return true
	}
	return name == "lib" || name == "job" || name == AgentSocket || name == AgentLock || name == AgentJournal || name == AgentJournal+AgentJournalNew || name == PolicySocket || name == PolicyLock
}

// Names of the agent's files in the folder of jobs.
const (
	AgentSocket  = "agent.sock"
	AgentLock    = "agent.lock"
	AgentJournal = "agent.journal"
	// AgentJournalNew is what its name ends with while it is written anew.
	AgentJournalNew = ".new"
)

// Names of a policy's files there.
const (
	PolicySocket = "policy.sock"
	PolicyLock   = "policy.lock"
)

// Title returns the job's name, or its path where it has no name.
func (j Job) Title() string {
	if j.Name != "" {
		return j.Name
	}
	return j.Path
}

// FindFolder is Find, and also finds a job that has a folder but no region yet.
func FindFolder(nameOrPath string) (Job, error) {
	j, err := Find(nameOrPath)
	if errors.Is(err, ErrNoJob) && !strings.ContainsRune(nameOrPath, filepath.Separator) && !Reserved(nameOrPath) {
		if path, e := RegionPath(nameOrPath); e == nil && exists(filepath.Dir(path)) {
			return Job{nameOrPath, path}, nil
		}
	}
	return j, err
}
