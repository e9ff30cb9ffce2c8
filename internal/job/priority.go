package job

import (
	"fmt"
	"os"
	"path/filepath"

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
