package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ration/internal/region"
)

// A process that has a descriptor of a job's files can lock them, and can hand the descriptor to any other
// process, of any user. So a tenant can keep an operator's job in use for as long as it likes. An operator
// need not wait for that: with limits that only the operator can write, the job can be ended under its
// processes. They keep what they hold, which the driver goes on counting for them, and get nothing more.

// endedPrefix is of the folders, in that of jobs, into which jobs are moved to be removed. No job has such a name.
const endedPrefix = ".ended-"

// ForceRemove is Remove with force, but removes a job whose limits are an operator's also while processes use it. left
// are these processes, as far as the kernel names them: what they hold of a device is in no job from now on.
func ForceRemove(j Job) (left []region.Process, err error) {
	err = Remove(j, true)
	if j.Name == "" || !errors.Is(err, ErrLiving) && !errors.Is(err, ErrInUse) {
		return nil, err
	}
	limits, e := region.OpenOperatorLimits(j.Path)
	if e != nil {
		return nil, err // a process could go on under a limit that is its own to write
	}
	if err := limits.End(); err != nil {
		return nil, fmt.Errorf("removing %s: %w (nothing was removed)", j.Title(), err)
	}
	u, _ := inspect(j)
	left = u.living
	for _, more := range [][]region.Process{lockers(j.Path), openers(filepath.Join(filepath.Dir(j.Path), aliveName))} {
		left = append(left, notIn(left, more)...)
	}
	// No process finds the job in its new place, whatever it has locked in the old one: not even a process that
	// creates a job of this name at the same time.
	removeEnded()
	aside, err := os.MkdirTemp(Folder(), endedPrefix)
	if err == nil {
		err = os.Rename(filepath.Dir(j.Path), filepath.Join(aside, j.Name))
	}
	if err != nil {
		return left, fmt.Errorf("removing %s: %w (its processes get nothing more)", j.Title(), err)
	}
	removeEnded()
	return left, nil
}

// removeEnded removes jobs that were moved aside, also by a process that was killed before it removed them.
func removeEnded() {
	entries, _ := os.ReadDir(Folder())
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), endedPrefix) {
			continue
		}
		aside := filepath.Join(Folder(), e.Name())
		jobs, _ := os.ReadDir(aside)
		for _, j := range jobs {
			_ = removeFolder(filepath.Join(aside, j.Name())) // the next ForceRemove tries again
		}
		_ = os.Remove(aside)
	}
}

// LeftText says which processes outlived a job that ForceRemove removed.
func LeftText(j Job, left []region.Process) string {
	return fmt.Sprintf("%s was removed while processes use it: %s (they get nothing more, and no job counts what they hold: end them)", j.Title(), namesText(left))
}

// namesText names processes, each once, and not too many.
func namesText(processes []region.Process) string {
	var out []string
	named := map[int]bool{} // a process with many slots must not hide others
	others := 0
	for _, p := range processes {
		if p.Seen != 0 && named[p.Seen] {
			continue
		}
		if named[p.Seen] = true; len(out) == maxNamed {
			others++
			continue
		}
		out = append(out, processText(p))
	}
	if others > 0 {
		out = append(out, fmt.Sprintf("and %d others", others))
	}
	if len(out) == 0 {
		return "none that can be seen from here"
	}
	return strings.Join(out, ", ")
}
