package job

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Scratch makes a folder for a temporary region. It returns the path for the region, and a function
// that removes the folder. It uses a tmpfs if there is one, as the regions of real jobs do, so that
// benchmarks do not measure a disk.
func Scratch() (path string, remove func(), err error) {
	parent := os.Getenv("TMPDIR")
	if parent == "" && unix.Access("/dev/shm", unix.W_OK|unix.X_OK) == nil {
		parent = "/dev/shm"
	}
	scratch.Lock() // before the folder is made, so that RemoveScratch does not miss it
	defer scratch.Unlock()
	dir, err := os.MkdirTemp(parent, "ration-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for a region: %w (name another in TMPDIR)", err)
	}
	scratch.dirs[dir] = true
	return filepath.Join(dir, RegionName), func() {
		scratch.Lock()
		defer scratch.Unlock()
		delete(scratch.dirs, dir)
		_ = os.RemoveAll(dir)
	}, nil
}

// scratch has the folders of Scratch that were not removed yet.
var scratch = struct {
	sync.Mutex
	dirs map[string]bool // guarded by the mutex
}{dirs: map[string]bool{}}

// RemoveScratch removes all folders of Scratch. It is for a program that is about to end after an
// interrupt.
func RemoveScratch() {
	const tries = 100 // other goroutines may still make files in the folder
	scratch.Lock()
	defer scratch.Unlock()
	for dir := range scratch.dirs {
		for range tries {
			if os.RemoveAll(dir) == nil {
				break
			}
		}
	}
}
