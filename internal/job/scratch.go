package job

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Scratch makes a folder for a region that is thrown away after use, and returns
// the path for the region and what removes it all. It is in memory where
// possible, as the regions of real jobs are: a disk would be measured as well.
func Scratch() (path string, remove func(), err error) {
	parent := os.Getenv("TMPDIR")
	if parent == "" && unix.Access("/dev/shm", unix.W_OK|unix.X_OK) == nil {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "ration-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for a region: %w (name another in TMPDIR)", err)
	}
	scratch.Lock()
	defer scratch.Unlock()
	scratch.dirs[dir] = true
	return filepath.Join(dir, regionName), func() {
		scratch.Lock()
		defer scratch.Unlock()
		delete(scratch.dirs, dir)
		_ = os.RemoveAll(dir)
	}, nil
}

var scratch = struct {
	sync.Mutex
	dirs map[string]bool
}{dirs: map[string]bool{}}

// Sweep removes what Scratch made and nobody removed, for a program that is about
// to end in the middle of its work.
func Sweep() {
	scratch.Lock()
	defer scratch.Unlock()
	for dir := range scratch.dirs {
		_ = os.RemoveAll(dir)
	}
}
