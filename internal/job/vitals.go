package job

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// Vitals has open files of a job's folder. They show a process that reads the job repeatedly
// whether the job's command runs, and whether files have changed. It takes no lock.
type Vitals struct {
	dir   int    // the job's folder; Close leaves it open
	name  string // file name of the region
	alive int    // the file that launchers lock; -1 if it cannot be opened
}

// OpenVitals opens the files by a descriptor of the job's folder, which must stay open until Close.
func OpenVitals(dir int, region string) Vitals {
	fd, err := safepath.OpenAt(dir, aliveName, unix.O_RDONLY, 0)
	if err != nil {
		fd = -1
	}
	return Vitals{dir, region, fd}
}

// Standing reports whether the job is a standing one.
func (v Vitals) Standing() bool {
	_, standing := standingIn(v.dir)
	return standing
}

// Close closes the files.
func (v Vitals) Close() { closeIf(v.alive) }

// Vital is the state of a job outside its region. Two values are equal if nothing has changed in
// between.
type Vital struct {
	Launched bool
	Running  bool          // the command runs, or a process creates or removes the job
	Region   FileID        // zero if there is none
	folder   unix.Timespec // time of the last file made or removed in the folder
	info     written
	rest     written
}

// written is when a file of the folder was last written, and its size; zero if there is none.
type written struct {
	at   unix.Timespec
	size int64
}

// Look returns the current state, and whether the folder still exists: another job of the same name
// has another folder. before is the result of an earlier Look.
func (v Vitals) Look(before Vital) (out Vital, there bool) {
	var st unix.Stat_t
	if unix.Fstat(v.dir, &st) != nil || st.Nlink == 0 {
		return out, false
	}
	out.folder = st.Mtim
	if out.Launched = v.alive >= 0; out.Launched {
		// Launchers never replace the file.
		out.Running = inUseBy(v.alive)
	}
	// A file that was made in the same tick of the kernel's clock as the last Look is found by the
	// next full read of the job.
	if out.folder == before.folder && before.Region != (FileID{}) {
		out.Region = before.Region
	} else if id, err := identityIn(v.dir, v.name); err == nil {
		out.Region = id
	}
	out.info, out.rest = v.written(infoName), v.written(restName)
	return out, true
}

func (v Vitals) written(name string) (out written) {
	var st unix.Stat_t
	if safepath.StatAt(v.dir, name, &st) == nil {
		out = written{st.Mtim, st.Size}
	}
	return out
}

// FolderChanged reports whether a file in the folder was made or removed between two Looks.
func (v Vital) FolderChanged(since Vital) bool { return v.folder != since.folder }

// Names returns at most most names in a folder of jobs that may be jobs. changed is the folder's
// modification time: as long as that is the same, so are the names.
func Names(folder string, most int) (names []string, changed unix.Timespec, all bool, err error) {
	fd, err := openList(folder)
	if err != nil {
		return nil, changed, true, err
	}
	list := os.NewFile(uintptr(fd), folder)
	defer list.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil { // before reading the names, so that a later change has a later time
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

// TellsOfJoin reports whether a process opens that file of the job's folder when it joins the job.
// A process that only reads the job opens other files as well.
func TellsOfJoin(name string) bool { return name == RegionName }

// TellsOfEnd reports whether the job's processes, or its launcher, keep that file open for writing
// until they end.
func TellsOfEnd(name string) bool { return name == RegionName || name == aliveName }
