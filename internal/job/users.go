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

// Root reads the jobs of all users. Each user controls the folders of that user's jobs, so nothing
// in them is trusted, no link of another user is followed, and a bounded part is read. A folder may
// even hang forever, on a file system that its user provides. So the caller reads each folder
// separately, with a deadline.

// maxUserJobs bounds how many jobs of one folder are read.
const maxUserJobs = 4096

// maxTempNames bounds how many names in /tmp are read: every user can make any number.
const maxTempNames = 1 << 15

// maxTempUsers limits how many users we read of those who have only a folder in /tmp. A user with a
// range in /etc/subuid can make folders for thousands of UIDs.
const maxTempUsers = 1024

// Paths are the places to search for other users' jobs.
type Paths struct {
	Runtime string // holds a folder for each user, by UID: /run/user
	Temp    string // holds ration-UID: /tmp
	Proc    string // holds a folder for each process: /proc
	Home    func(uid int) string
	listed  int // bound on names in Temp; 0 means maxTempNames
	strange int // bound on users with nothing but a folder in Temp; 0 means maxTempUsers
}

// SystemPaths are those of this machine.
var SystemPaths = Paths{Runtime: "/run/user", Temp: "/tmp", Proc: "/proc", Home: proc.Home}

// Folders returns the users that may have jobs, with their folders, which need not exist. all is
// false if Temp exceeds the bounds on names or users. Users with a process, or with a folder in
// Runtime, are not bounded. So at most ended jobs are missing then.
func (p Paths) Folders() (out []Folders, all bool) {
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

// tempPrefix is before the UID in the name of a user's folder in Temp.
const tempPrefix = "ration-"

// parseUID parses a UID without leading zeros or sign, so that each has one name.
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

// Paths returns the folders. It may query a directory service for the user's home.
func (f Folders) Paths() []string {
	if f.withProcesses { // without a process no job in the home can run
		if home := f.home(f.UID); filepath.IsAbs(home) {
			return append(slices.Clone(f.paths), filepath.Join(home, ".local", "state", "ration"))
		}
	}
	return f.paths
}

// Named returns the jobs of a user with a given name; each of the user's folders may have one. It
// may query a directory service for the user's home, and blocks if a folder does not respond.
func (p Paths) Named(uid int, name string) (out []Job) {
	if !isJobName(name) {
		return nil
	}
	for _, folder := range p.foldersOf(uid) {
		path := filepath.Join(folder, name, RegionName)
		dir, err := safepath.OpenFolder(filepath.Dir(path))
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if safepath.StatAt(dir, RegionName, &st) == nil && int(st.Uid) == uid {
			out = append(out, Job{name, path})
		}
		_ = unix.Close(dir)
	}
	return out
}

// Recorded returns the record of a user's command with a name, or an empty Job. Under a policy a command that is in its user's
// job, or in a run, has a record in the user's own folder, also while it runs. It blocks as Named does.
func (p Paths) Recorded(uid int, name string) Job {
	if !isJobName(name) {
		return Job{}
	}
	for _, folder := range p.foldersOf(uid) {
		path := filepath.Join(folder, name, RegionName)
		dir, err := safepath.OpenFolder(filepath.Dir(path))
		if err != nil {
			continue
		}
		l := ReadLaunch(dir)
		_ = unix.Close(dir)
		if of, is := PolicyUser(l.Info.Region); is && of == uid && l.UID == uid {
			return Job{Path: path}
		}
	}
	return Job{}
}

// NamedInQueue returns the command in a queue of a user that will make the job of that name, or nil. It blocks as
// Named does.
func (p Paths) NamedInQueue(uid int, name string) *Queued {
	for _, folder := range p.foldersOf(uid) {
		if !ownedBy(folder, uid) {
			continue
		}
		if q := FindQueued(folder, name); q != nil {
			return q
		}
	}
	return nil
}

// NameAt returns the name of the job at a path, as the list of the folder that it is in has it: a folder of root's or of
// this user's jobs, or one of those of uid, who owns the region. own reports whether it is one of the former. The name is
// empty if it is in none of them. It may query a directory service for the user's home.
func (p Paths) NameAt(uid int, path string) (name string, own bool) {
	folder, name := filepath.Split(filepath.Dir(path))
	folder = filepath.Clean(folder)
	if filepath.Base(path) != RegionName {
		return "", false
	}
	if folder == RootFolder || folder == Folder() {
		return name, true
	}
	if !isJobName(name) || !slices.Contains(p.foldersOf(uid), folder) {
		return "", false
	}
	return name, false
}

// foldersOf returns the folders in which a user may have jobs.
func (p Paths) foldersOf(uid int) []string {
	f := Folders{UID: uid, withProcesses: true, home: p.Home}
	if temp := filepath.Join(p.Temp, tempPrefix+strconv.Itoa(uid)); ownedBy(temp, uid) {
		f.paths = append(f.paths, temp) // first, since records are made there
	}
	f.paths = append(f.paths, filepath.Join(p.Runtime, strconv.Itoa(uid), "ration"))
	return f.Paths()
}

// each calls visit for each name in a folder until visit returns false. It reports whether it has
// visited all names. A missing folder has no names.
func each(dir string, visit func(name string) bool) (all bool) {
	f, err := os.Open(dir)
	if err != nil {
		return true
	}
	defer f.Close()
	for {
		some, err := f.Readdirnames(1024)
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

// ownedBy reports whether a folder exists and belongs to a user, because every user can make a
// folder of any name in /tmp. It does not query the folder's file system, which a tenant may
// provide. If the kernel does not know the owner without a query, it returns true.
func ownedBy(path string, uid int) bool {
	var st unix.Statx_t
	const flags, want = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC, unix.STATX_UID
	err := unix.Statx(unix.AT_FDCWD, path, flags, want, &st)
	return err != nil && err != unix.ENOENT || err == nil && (st.Mask&want == 0 || int(st.Uid) == uid)
}

// isJobName reports whether users can choose that name for a job.
func isJobName(name string) bool { return limit.CheckName("job", name) == nil && !Reserved(name) }

// EachIn calls visit for each job in a folder of another user, also if it has only a record and no region, with a descriptor of the job's
// folder, until visit returns false. It reports whether it has visited all jobs.
func EachIn(folder string, visit func(j Job, dir int) bool) (all bool) {
	fd, err := openList(folder)
	if err != nil {
		return true // missing, or a link, which is not followed
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
			dir, err := safepath.OpenAt(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				continue
			}
			if _, err = identityIn(dir, RegionName); err != nil {
				_, err = identityIn(dir, infoName)
			}
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
