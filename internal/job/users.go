package job

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/safepath"
)

// Root looks at the jobs of all users. Their folders are theirs: nothing in one is trusted, no
// link of theirs is followed, no more than a bounded part of it read. A folder can even be made
// to never answer (a file system of its user's), so the caller reads each by itself and waits for
// none longer than for a deadline.

// maxUserJobs bounds how many jobs of one folder are looked at.
const maxUserJobs = 4096

// maxTempNames bounds how many names in the folder of temporary files are listed: every user can
// make any number.
const maxTempNames = 1 << 15

// maxTempUsers bounds how many users are looked at of whom only such a name is known. A user to whom
// the system lends a range of UIDs (/etc/subuid) can make folders of thousands.
const maxTempUsers = 1024

// Places is where the folders of other users' jobs are looked for.
type Places struct {
	Runtime string // holds a folder for each user, by UID: /run/user
	Temp    string // holds ration-UID: /tmp
	Proc    string // holds a folder for each process: /proc
	Home    func(uid int) string
	listed  int // names of Temp that are listed at most; 0 is maxTempNames
	strange int // users of whom only a name in Temp is known, at most; 0 is maxTempUsers
}

// AllPlaces are those of this machine.
var AllPlaces = Places{Runtime: "/run/user", Temp: "/tmp", Proc: "/proc", Home: proc.Home}

// Folders returns paths at which other users' jobs may be; some need not exist. all is false
// where there are more names, or users, in Temp than are looked at. A user with a process or a folder in
// Runtime is found all the same, so only jobs of users without any, which have ended, may be
// missing then.
func (p Places) Folders() (out []Folders, all bool) {
	byUser := map[int]*Folders{}
	user := func(uid int) *Folders {
		if byUser[uid] == nil {
			byUser[uid] = &Folders{UID: uid, home: p.Home}
		}
		return byUser[uid]
	}
	each(p.Runtime, func(name string) bool {
		if uid, is := parseUID(name); is {
			user(uid).paths = []string{filepath.Join(p.Runtime, name, "ration")}
		}
		return true
	})
	each(p.Proc, func(name string) bool {
		var st unix.Stat_t
		if _, err := strconv.Atoi(name); err == nil && unix.Lstat(filepath.Join(p.Proc, name), &st) == nil && st.Uid != 0 {
			user(int(st.Uid)).withProcesses = true
		}
		return true
	})
	inTemp := func(f *Folders) {
		if path := filepath.Join(p.Temp, tempPrefix+strconv.Itoa(f.UID)); ownedBy(path, f.UID) {
			f.paths = append(f.paths, path)
		}
	}
	known := map[int]bool{}
	for uid, f := range byUser {
		known[uid] = true
		inTemp(f)
	}
	left, strange := cmp.Or(p.listed, maxTempNames), cmp.Or(p.strange, maxTempUsers)
	all = each(p.Temp, func(name string) bool {
		if left--; left < 0 {
			return false
		}
		digits, is := strings.CutPrefix(name, tempPrefix)
		if uid, number := parseUID(digits); is && number && !known[uid] {
			f := &Folders{UID: uid, home: p.Home}
			if inTemp(f); len(f.paths) > 0 {
				if strange--; strange < 0 {
					return false
				}
				byUser[uid] = f
			}
		}
		return true
	})
	for _, f := range byUser {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Folders) int { return a.UID - b.UID })
	return out, all
}

// tempPrefix is what the name of a user's folder in Temp has before the UID.
const tempPrefix = "ration-"

// parseUID parses the number of a user as it is written, so that each has one name.
func parseUID(text string) (uid int, is bool) {
	uid, err := strconv.Atoi(text)
	return uid, err == nil && uid >= 0 && strconv.Itoa(uid) == text
}

// Folders is where the jobs of one user may be.
type Folders struct {
	UID           int
	paths         []string
	withProcesses bool
	home          func(uid int) string
}

// Paths returns the folders. It may ask a directory service for the user's home.
func (f Folders) Paths() []string {
	if f.withProcesses { // only these can have a job in their home
		if home := f.home(f.UID); filepath.IsAbs(home) {
			return append(slices.Clone(f.paths), filepath.Join(home, ".local", "state", "ration"))
		}
	}
	return f.paths
}

// Named returns the jobs of a name that a user has: each of the folders may have one. It may ask a
// directory service for the user's home, and does not return where a folder does not answer.
func (p Places) Named(uid int, name string) (out []Job) {
	if !isJobName(name) {
		return nil
	}
	f := Folders{UID: uid, paths: []string{filepath.Join(p.Runtime, strconv.Itoa(uid), "ration")}, withProcesses: true, home: p.Home}
	if temp := filepath.Join(p.Temp, tempPrefix+strconv.Itoa(uid)); ownedBy(temp, uid) {
		f.paths = append(f.paths, temp)
	}
	for _, folder := range f.Paths() {
		path := filepath.Join(folder, name, RegionName)
		dir, err := safepath.OpenFolder(filepath.Dir(path))
		if err != nil {
			continue // there is none, or a link that is not followed
		}
		var st unix.Stat_t
		if unix.Fstatat(dir, RegionName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) == uid {
			out = append(out, Job{name, path})
		}
		_ = unix.Close(dir)
	}
	return out
}

// each calls visit for each name in a folder, if there is one, until that returns false. It
// reports whether it saw all of them.
func each(dir string, visit func(name string) bool) (all bool) {
	f, err := os.Open(dir)
	if err != nil {
		return true
	}
	defer f.Close()
	for {
		some, err := f.Readdirnames(1024) // others may have made any number
		for _, name := range some {
			if !visit(name) {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}

// ownedBy reports whether a folder belongs to a user: anybody can make one of any name in /tmp,
// and no job is kept in one of another user's. The file system that the folder is on may be a
// tenant's, and is not asked; where the kernel cannot say without, it may be that user's. One that
// does not exist is nobody's.
func ownedBy(path string, uid int) bool {
	var st unix.Statx_t
	const flags, want = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC, unix.STATX_UID
	err := unix.Statx(unix.AT_FDCWD, path, flags, want, &st)
	return err != nil && err != unix.ENOENT || err == nil && (st.Mask&want == 0 || int(st.Uid) == uid)
}

// isJobName reports whether what is in a folder of jobs may be a job, by its name.
func isJobName(name string) bool { return limit.CheckName("job", name) == nil && !Reserved(name) }

// EachIn calls visit for each job in a folder of another user's, with the descriptor of the
// job's own folder, until that returns false. It reports whether it saw all of them.
func EachIn(folder string, visit func(j Job, dir int) bool) (all bool) {
	top, err := safepath.OpenFolder(folder)
	if err != nil {
		return true // there is none, or a link that is not followed
	}
	defer unix.Close(top)
	fd, err := safepath.OpenAt(top, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return true
	}
	list := os.NewFile(uintptr(fd), folder)
	defer list.Close()
	for seen := 0; ; {
		some, err := list.Readdirnames(64)
		for _, name := range some {
			if seen++; seen > maxUserJobs {
				return false
			}
			if !isJobName(name) {
				continue
			}
			dir, err := safepath.OpenAt(top, name, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				continue
			}
			_, err = identityIn(dir, RegionName)
			more := err != nil || visit(Job{name, filepath.Join(folder, name, RegionName)}, dir)
			_ = unix.Close(dir)
			if !more {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}
