package job

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// openersBudget is how long the descriptors of all processes are looked at: any user can have a million.
const openersBudget = time.Second

// lockers returns the processes that can have a region locked, whatever the region says. The kernel names none for a
// lock of an open file: then they are those that have the region open.
func lockers(path string) []region.Process {
	if out := holders(path); len(out) > 0 {
		return out
	}
	return openers(path)
}

// holders returns the processes that the kernel names for the locks of a region.
func holders(path string) (out []region.Process) {
	dir, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	all, _ := region.LockHolders(dir, filepath.Base(path), path)
	for _, h := range all {
		if h.Verified {
			out = append(out, asProcess(h.PID)...)
		}
	}
	return out
}

// asProcess returns a process by the kernel's word alone; none if it has ended.
func asProcess(pid int) []region.Process {
	_, name, _, err := proc.Owner(pid)
	if err != nil {
		return nil
	}
	return []region.Process{{PID: pid, Seen: pid, Name: termtext.Printable(name)}}
}

// openers returns the other processes that have a file open, as far as this one may look into them.
func openers(path string) (out []region.Process) {
	id, err := identityOf(path)
	if err != nil {
		return nil
	}
	list, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer list.Close()
	left := safepath.RealClock.For(openersBudget)
	for left.Left() {
		names, err := list.Readdirnames(64)
		for _, name := range names {
			if pid, e := strconv.Atoi(name); e == nil && pid != os.Getpid() && left.Left() && hasOpen(pid, id) {
				out = append(out, asProcess(pid)...)
			}
		}
		if err != nil {
			break
		}
	}
	return out
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, id FileID) bool {
	root, _, err := region.OpenRoot(pid, region.FileKey{Dev: id.dev, Ino: id.ino})
	if err == nil {
		_ = unix.Close(root)
	}
	return err == nil
}

// notIn returns the processes of more that are not in list.
func notIn(list, more []region.Process) []region.Process {
	return slices.DeleteFunc(more, func(p region.Process) bool {
		return slices.ContainsFunc(list, func(q region.Process) bool { return q.Seen == p.Seen })
	})
}
