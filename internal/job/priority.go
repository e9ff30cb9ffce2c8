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

// PriorityFlood returns the visible process with the most locks on a file of priorities, and what it holds there. It returns
// a process with a lock that hides those of others before that, as the library never has one; -1 if the kernel does not name
// it; and 0 if there is neither, or no such file. It reads the kernel's list of locks for a second at most.
func PriorityFlood(path string) (pid int, holds string, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == unix.ENOENT {
		return 0, "", nil
	} else if err != nil {
		return 0, "", fmt.Errorf("looking for %s: %w", path, err)
	}
	end := make(chan struct{})
	timer := time.AfterFunc(time.Second, func() { close(end) })
	defer timer.Stop()
	text, _, err := readLocks(end)
	if err != nil {
		return 0, "", err
	}
	counts, most := map[int]int{}, 0
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
		if string(field[1]) != "FLOCK" && hidesPriorities(string(field[1]), string(field[6]), string(field[7]), time.Now()) {
			return holder, "a lock that hides those of other processes", nil
		}
		if counts[holder]++; counts[holder] >= manyPriorityLocks && counts[holder] > most {
			pid, most = holder, counts[holder]
			holds = fmt.Sprintf("%d locks", most)
		}
	}
	return pid, holds, nil
}

// hidesPriorities reports whether a lock on a file of priorities is none of the library's, of which each begins in the first
// bytes of a seat, and ends in it, within an hour from now (shim/compute/claims.c). It may hide those that are.
func hidesPriorities(kind, from, to string, now time.Time) bool {
	const seatBits, kindBits, details, longest = 32, 42, 4096, int32(3600e3)
	start, err := strconv.ParseUint(from, 10, 63)
	last, err2 := strconv.ParseUint(to, 10, 63) // or EOF
	if kind != "POSIX" || err != nil || err2 != nil {
		return true
	}
	left := int32(uint32(last+1) - uint32(now.UnixMilli()))
	return start>>seatBits != last>>seatBits || start%(1<<seatBits) >= details || start>>kindBits != 0 && left > longest
}
