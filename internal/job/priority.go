package job

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the files, in the folder of jobs, by which jobs with a priority know of each other.
const (
	// PriorityFile is the file on which their processes have locks, without content
	// (shim/compute/claims.c).
	PriorityFile = "priority"
	// HighFolder has a file for each user that a policy allows high priority, by UID.
	HighFolder = "high-priority"
)

// MakePriorityFile makes PriorityFile in a folder, for all users, if there is none. It never replaces
// the file, because the locks belong to it.
func MakePriorityFile(folder string) error {
	f, err := os.OpenFile(filepath.Join(folder, PriorityFile), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return fmt.Errorf("making the file of priorities: %w", err)
	}
	defer f.Close()
	return f.Chmod(0o444) // in case of another umask
}

// manyPriorityLocks is the number of locks on PriorityFile above which a process slows others down. The
// library has fewer than 100 in a process.
const manyPriorityLocks = 500

// SharedPriorityFile is the file that takes the place of root's PriorityFile where there is none.
const SharedPriorityFile = "/tmp/ration-priority"

// PriorityFlood returns the visible process with the most locks on a file of priorities, and their
// number. It returns 0 if no process has many, or if there is no such file. It reads the kernel's list
// of locks for a second at most.
func PriorityFlood(path string) (pid, locks int, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == unix.ENOENT {
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, fmt.Errorf("looking for %s: %w", path, err)
	}
	end := make(chan struct{})
	timer := time.AfterFunc(time.Second, func() { close(end) })
	defer timer.Stop()
	text, _, err := readLocks(end)
	if err != nil {
		return 0, 0, err
	}
	counts := map[int]int{}
	for line := range bytes.Lines(text) {
		field := bytes.Fields(line)
		if len(field) != 8 {
			continue
		}
		id, err := parseFileID(string(field[5]))
		holder, err2 := strconv.Atoi(string(field[4]))
		if err != nil || err2 != nil || id != FileOf(&st) {
			continue
		}
		if counts[holder]++; counts[holder] >= manyPriorityLocks && counts[holder] > locks {
			pid, locks = holder, counts[holder]
		}
	}
	return pid, locks, nil
}
