package job

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
	"ration/internal/safepath"
)

// ErrNoJob is returned if there is no region of that name or at that path.
var ErrNoJob = errors.New("no such job")

// Find returns a job by its name or, if the argument contains a slash, by the path of its region.
func Find(nameOrPath string) (Job, error) {
	if strings.ContainsRune(nameOrPath, filepath.Separator) {
		if j, is := OfPolicy(nameOrPath); is && !safepath.Exists(nameOrPath) {
			return j, nil
		}
		return findByPath(nameOrPath)
	}
	if err := limit.CheckName("", nameOrPath); err != nil {
		return Job{}, err
	}
	jobs, err := List()
	if err != nil {
		return Job{}, err
	}
	for _, j := range jobs {
		if j.Name == nameOrPath {
			return j, nil
		}
	}
	if j, is := OfPolicy(nameOrPath); is {
		return j, nil
	}
	if name, _, is := Enclosing(); is && name == nameOrPath {
		return Job{Path: filepath.Join(WellKnown, RegionName)}, nil
	}
	if _, is := InUsersJob(nameOrPath); is {
		return Job{Path: OfUserPath(os.Getuid())}, nil
	}
	for _, folder := range OtherFolders() {
		if path := filepath.Join(folder, nameOrPath, RegionName); safepath.Exists(path) {
			return Job{Path: path}, nil
		}
	}
	waiting, _ := Queue(Folder()) // the error is about something else
	others, live := namesOf(jobs, Folder(), waiting)
	return Job{}, &NoJobError{Name: nameOrPath, Others: others, Live: live}
}

// NoJobError is returned by Find if this user has no job of a name. It is an ErrNoJob.
type NoJobError struct {
	Name   string
	Others []string // names of the jobs that there are, those that run or wait first
	Live   int      // how many of them run or wait
}

// Unwrap returns ErrNoJob.
func (e *NoJobError) Unwrap() error { return ErrNoJob }

// maxOthers bounds the names in an error.
const maxOthers = 5

func (e *NoJobError) Error() string {
	hint := "there is none in " + Folder()
	if n := len(e.Others); n > maxOthers {
		hint = fmt.Sprintf("there are: %s and %d more; ration ps -a shows them", strings.Join(e.Others[:maxOthers], ", "), n-maxOthers)
	} else if n > 0 {
		hint = "there are: " + strings.Join(e.Others, ", ")
	}
	return fmt.Sprintf("%s: %v (%s)", e.Name, ErrNoJob, hint)
}

// namesOf returns the names of jobs: those that run, those that commands in the queue of folder wait to make, and the
// others. live is how many of them run or wait.
func namesOf(jobs []Job, folder string, waiting []Waiting) (names []string, live int) {
	var running, others []string
	for _, j := range jobs {
		switch name := ShownName(j.Name, j.Path); {
		case name == "":
		case Running(j):
			running = append(running, name)
		default:
			others = append(others, name)
		}
	}
	for _, w := range waiting {
		name := ShownName(w.Job, filepath.Join(folder, w.Job, RegionName))
		if w.Job != "" && !slices.Contains(running, name) {
			running = append(running, name)
		}
	}
	others = slices.DeleteFunc(others, func(name string) bool { return slices.Contains(running, name) })
	return append(running, others...), len(running)
}

// InUsersJob returns the record of a command of this name that runs, or ran, in this user's job, which exists: under a
// policy, a command with a name and without limits is in it, and has only a record of its own.
func InUsersJob(name string) (record Launch, is bool) {
	path, err := RegionPath(name)
	if err != nil {
		return Launch{}, false
	}
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return Launch{}, false
	}
	defer unix.Close(dir)
	users := OfUserPath(os.Getuid())
	record = ReadLaunch(dir)
	return record, record.Info.Region == users && safepath.Exists(users)
}

// findByPath returns the job whose region is at path. A job in the folder of jobs gets its name,
// even if path leads there in another way, so that the checks for named jobs apply to it.
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

// identity identifies a file, which may have several paths.
type identity struct{ dev, ino uint64 }

// identityOf returns the identity of the file at path. It does not follow a link.
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
	err := safepath.StatAt(dir, name, &st)
	return identity{uint64(st.Dev), st.Ino}, err
}

// Reserved reports whether users cannot choose that name for a job.
func Reserved(name string) bool {
	switch name {
	case "lib", "job", AgentSocket, AgentLock, AgentJournal, AgentJournal + AgentJournalNew, UsageFile, PolicySocket, PolicyLock, PolicyRefused, PolicyRemoved, PolicyWaiting, PriorityFile, HighFolder:
		return true
	}
	return isOfPolicy(name)
}

// Names of the agent's files in the folder of jobs.
const (
	AgentSocket  = "agent.sock"
	AgentLock    = "agent.lock"
	AgentJournal = "agent.journal"
	// UsageFile has the accounts of usage, which root's agent keeps elsewhere.
	UsageFile = "usage.db"
	// AgentJournalNew is the suffix of the next version of the journal while it is written.
	AgentJournalNew = ".new"
)

// Names of the policy's files in the folder of jobs.
const (
	PolicySocket = "policy.sock"
	PolicyLock   = "policy.lock"
)

// Title returns the name by which people know the job, or its path if it has none.
func (j Job) Title() string { return cmp.Or(ShownName(j.Name, j.Path), j.Path) }

// FindFolder is like Find, and also finds a job that has a folder but no region: it has none yet, or it is the record
// of a command whose region is root's, under a policy. This login's own job comes first, as in Find: it is the one that
// ration ps shows by this name.
func FindFolder(nameOrPath string) (Job, error) {
	if folders := FoldersNamed(nameOrPath); len(folders) > 0 {
		own := Job{nameOrPath, filepath.Join(Folder(), nameOrPath, RegionName)}
		if filepath.Dir(own.Path) == folders[0] {
			return own, nil
		}
		for _, folder := range folders {
			if j := (Job{Path: filepath.Join(folder, RegionName)}); Running(j) {
				return j, nil
			}
		}
		return Job{Path: filepath.Join(folders[0], RegionName)}, nil
	}
	return Find(nameOrPath)
}

// FoldersNamed returns the folders of this user's jobs of a name, which may have no region: at most one of each login,
// this login's first.
func FoldersNamed(name string) (out []string) {
	if limit.CheckName("job", name) != nil || Reserved(name) {
		return nil
	}
	all := OtherFolders()
	if checkTrusted(Folder()) == nil {
		all = append([]string{Folder()}, all...)
	}
	for _, folder := range all {
		if folder = filepath.Join(folder, name); safepath.Exists(folder) {
			out = append(out, folder)
		}
	}
	return out
}
