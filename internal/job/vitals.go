package job

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// Vitals are what a process that looks again and again keeps open of a job's folder, to see
// whether the job's command runs and whether anything else was written down of it. It takes no
// lock.
type Vitals struct {
	dir   int    // the job's folder; not closed with the rest
	name  string // of the region in it
	alive int    // the file that launchers lock; -1 where there is none, or it cannot be opened
}

// OpenVitals opens them by the descriptor of the job's folder, which must stay open as long.
func OpenVitals(dir int, region string) Vitals {
	fd, err := safepath.OpenAt(dir, aliveName, unix.O_RDONLY, 0)
	if err != nil {
		fd = -1
	}
	return Vitals{dir, region, fd}
}

// Standing reports whether the job is one that `ration create` made, and that was not removed.
func (v Vitals) Standing() bool {
	_, standing := standingIn(v.dir)
	return standing
}

// Close closes them.
func (v Vitals) Close() { closeIf(v.alive) }

// Vital is how things are with a job. It is the same as before if nothing has changed but what
// is in its region.
type Vital struct {
	Launched bool
	Running  bool          // a process of the command has the job locked, or one that creates or removes it
	Region   FileID        // zero where there is none
	folder   unix.Timespec // when something in the folder was made or removed
	info     unix.Timespec
	size     int64
}

// Look returns it, and whether the folder is still there: one that was removed has no name, and
// a job of the same name is in another. before is what an earlier look returned.
func (v Vitals) Look(before Vital) (out Vital, there bool) {
	var st unix.Stat_t
	if unix.Fstat(v.dir, &st) != nil || st.Nlink == 0 {
		return out, false
	}
	out.folder = st.Mtim
	if out.Launched = v.alive >= 0; out.Launched {
		// A launcher replaces neither the file nor the folder.
		out.Running = inUseBy(v.alive)
	}
	// What was made within a tick of the kernel's clock after the look before is found when the
	// job is read, which is from time to time in any case.
	if out.folder == before.folder && before.Region != (FileID{}) {
		out.Region = before.Region
	} else if id, err := identityIn(v.dir, v.name); err == nil {
		out.Region = id
	}
	if unix.Fstatat(v.dir, infoName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		out.info, out.size = st.Mtim, st.Size
	}
	return out, true
}

// FolderChanged reports whether something in the folder was made or removed between two looks.
func (v Vital) FolderChanged(since Vital) bool { return v.folder != since.folder }

// Names lists the folders of a folder of jobs that may be jobs: so many at most. changed is when
// the folder itself was last changed, by which it is known whether another list would differ.
func Names(folder string, most int) (names []string, changed unix.Timespec, all bool, err error) {
	fd, err := openList(folder)
	if err != nil {
		return nil, changed, true, err
	}
	list := os.NewFile(uintptr(fd), folder)
	defer list.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil { // before it is read: what comes later is seen the next time
		return nil, changed, true, err
	}
	for {
		some, err := list.Readdirnames(256)
		for _, name := range some {
			if len(names) >= most {
				return names, st.Mtim, false, nil
			}
			if isJobName(name) || folder == RootFolder && isOfPolicy(name) {
				names = append(names, name)
			}
		}
		if err != nil {
			return names, st.Mtim, true, nil
		}
	}
}

// Changed returns when a folder of jobs was last changed.
func Changed(folder string) (unix.Timespec, error) {
	var st unix.Stat_t
	fd, err := safepath.OpenFolder(folder)
	if err != nil {
		return unix.Timespec{}, err
	}
	defer unix.Close(fd)
	err = unix.Fstat(fd, &st)
	return st.Mtim, err
}

func openList(folder string) (int, error) {
	top, err := safepath.OpenFolder(folder)
	if err != nil {
		return -1, err
	}
	defer unix.Close(top)
	fd, err := safepath.OpenAt(top, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, fmt.Errorf("listing %s: %w", folder, err)
	}
	return fd, nil
}

// TellsOfJoin reports whether a file in a job's folder is one that a process opens when it joins the
// job. Who reads the job opens the other files as well.
func TellsOfJoin(name string) bool { return name == RegionName }

// TellsOfEnd reports whether it is one that a process of the job, or its launcher, has open for
// writing until it ends.
func TellsOfEnd(name string) bool { return name == RegionName || name == aliveName }
