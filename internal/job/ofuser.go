package job

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/safepath"
)

// Under a policy all processes of a user are in one job, which package policy makes. It is in
// root's folder of jobs even if EnvFolder is set, because the library searches there
// (shim/userjob.c).

// RootFolder is root's folder of jobs.
const RootFolder = "/run/ration"

// ExemptName is a symbolic link in the folder of a user's job that exempts this user from the
// policy. Its target does not exist. A link is used because its owner can be checked in any user
// namespace, and because the user, who owns it, cannot write into it.
const ExemptName = "exempt"

// Exempt reports whether the policy in force exempts a user: root has made the link ExemptName of that user, in a folder that
// only root can write.
func Exempt(uid int) bool {
	if uid <= 0 || !PolicyInForce() {
		return false
	}
	var folder, link unix.Stat_t
	path := filepath.Join(RootFolder, OfUser(uid))
	return unix.Lstat(path, &folder) == nil && folder.Uid == 0 && folder.Mode&0o022 == 0 &&
		unix.Lstat(filepath.Join(path, ExemptName), &link) == nil && link.Uid == uint32(uid)
}

const ofUserPrefix = "user-"

// OfUser returns the name of a user's job.
func OfUser(uid int) string { return ofUserPrefix + strconv.Itoa(uid) }

// UserOf returns the user whose job has that name.
func UserOf(name string) (uid int, is bool) {
	digits, is := strings.CutPrefix(name, ofUserPrefix)
	if !is {
		return 0, false
	}
	return parseUID(digits)
}

// RunOf returns the user and the run of a job's name. A run is a second job of a user, with a part of the
// limits of the user's job.
func RunOf(name string) (uid int, run string, is bool) {
	rest, is := strings.CutPrefix(name, ofUserPrefix)
	digits, run, cut := strings.Cut(rest, "-")
	if !is || !cut || run == "" {
		return 0, "", false
	}
	uid, is = parseUID(digits)
	return uid, run, is
}

// InForceFile exists while a policy is in force. Package policy writes it, and the library checks
// for it (shim/userjob.c).
const InForceFile = "/etc/ration/in-force.toml"

// PolicyInForce reports whether a policy is in force.
func PolicyInForce() bool { return safepath.Exists(InForceFile) }

// PolicyOverbooks reports whether a policy is in force that lets rations come to more than a device has.
func PolicyOverbooks() bool {
	text, err := os.ReadFile(InForceFile)
	return err == nil && overbooks().Match(text)
}

// overbooks matches the line of a valid policy that says it. No other key of it has this name.
var overbooks = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^[ \t]*["']?overbook["']?[ \t]*=[ \t]*true\b`) })

// Ruled reports whether a policy puts all programs of this user into one job. userjob_ruled in the
// library does the same.
func Ruled() bool {
	inForce := unix.Stat_t{Uid: ^uint32(0)} // no owner, in case it cannot be read
	if err := unix.Lstat(InForceFile, &inForce); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	uid := os.Getuid()
	var exempt unix.Stat_t
	err := unix.Lstat(filepath.Join(RootFolder, OfUser(uid), ExemptName), &exempt)
	return uid != 0 && (err != nil || int(exempt.Uid) != uid || exempt.Uid == inForce.Uid)
}

// PolicyUser returns the user that a job or run of a policy is for, by the path of its region.
func PolicyUser(path string) (uid int, is bool) {
	folder := filepath.Dir(path)
	if filepath.Dir(folder) != RootFolder {
		return 0, false
	}
	if uid, is = UserOf(filepath.Base(folder)); !is {
		uid, _, is = RunOf(filepath.Base(folder))
	}
	return uid, is
}

// IsRun reports whether a path is that of the region of a run.
func IsRun(path string) bool {
	folder := filepath.Dir(path)
	_, _, is := RunOf(filepath.Base(folder))
	return is && filepath.Dir(folder) == RootFolder
}

// ShownName returns the name by which people know a job: under a policy USER for the job of all programs of a user,
// USER/NAME for a run, and name for all other jobs. path is the path of the job's region.
func ShownName(name, path string) string {
	folder := filepath.Dir(path)
	if filepath.Dir(folder) != RootFolder || filepath.Base(path) != RegionName {
		return name
	}
	if uid, is := UserOf(filepath.Base(folder)); is {
		return proc.UserName(uid)
	}
	if uid, run, is := RunOf(filepath.Base(folder)); is {
		return proc.UserName(uid) + "/" + run
	}
	return name
}

// OfPolicy finds a job that a policy made, by its shown name: USER, USER/NAME or, for a run of this user, NAME.
// It returns only the path: commands on named jobs are for jobs in this user's own folder. Only root finds jobs
// of other users, and those that the service is about to make or remove.
func OfPolicy(argument string) (Job, bool) {
	user, run, isRun := strings.Cut(argument, "/")
	var paths []string
	if uid, err := proc.UID(user); err == nil && (AllUsers() || uid == os.Getuid()) {
		if path := OfUserPath(uid); isRun {
			paths = append(paths, RunPath(uid, run))
		} else {
			paths = append(paths, path)
		}
	}
	if !isRun {
		paths = append(paths, RunPath(os.Getuid(), argument))
	}
	for _, path := range paths {
		stands := AllUsers() || safepath.Exists(filepath.Join(filepath.Dir(path), CreatedName))
		if !strings.Contains(run, "/") && safepath.Exists(path) && stands {
			return Job{Path: path}, true
		}
	}
	return Job{}, false
}

// isOfPolicy reports whether a name is that of a user's job or run. Users cannot choose such names, but they
// are listed like other jobs.
func isOfPolicy(name string) bool {
	_, user := UserOf(name)
	_, _, run := RunOf(name)
	return user || run
}

// RunOfUser returns the name of a user's run.
func RunOfUser(uid int, run string) string { return OfUser(uid) + "-" + run }

// RunPath returns the path of the region of a user's run, which need not exist.
func RunPath(uid int, run string) string {
	return filepath.Join(RootFolder, RunOfUser(uid, run), RegionName)
}

// openRun opens the folder of the run that a job is the record of, by descriptors of the job's folder and of its file info.
// It returns -1 if the run has ended; one that was made after the record is a later one of that name. What is in a record is
// its user's word, so it counts only for that user's own run of the same name.
func openRun(dir, info int, name string) (run int, path string) {
	uid, record, _ := readInfo(info)
	path = RunPath(uid, name)
	var st unix.Stat_t
	if record.Region != path || unix.Fstat(dir, &st) != nil || int(st.Uid) != uid {
		return -1, ""
	}
	run, err := safepath.OpenFolder(filepath.Dir(path))
	if err != nil {
		return -1, ""
	}
	if created, standing := standingIn(run); !standing || created > record.Started {
		_ = unix.Close(run)
		return -1, ""
	}
	return run, path
}

// runPathOf returns the path of the region of the run that a job is the record of, or "".
func runPathOf(j Job) string {
	folder := filepath.Dir(j.Path)
	dir, err := safepath.OpenFolder(folder)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	info, err := safepath.OpenAt(dir, infoName, unix.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(info)
	run, path := openRun(dir, info, filepath.Base(folder))
	closeIf(run)
	return path
}

// RunsOf returns the runs of a user, or of all users if uid is negative, by their folders.
func RunsOf(uid int) (runs []Job) {
	entries, _ := os.ReadDir(RootFolder)
	for _, e := range entries {
		if owner, _, is := RunOf(e.Name()); is && (uid < 0 || owner == uid) {
			runs = append(runs, Job{e.Name(), filepath.Join(RootFolder, e.Name(), RegionName)})
		}
	}
	return runs
}

// OfUserPath returns the path of the region of a user's job, which need not exist.
func OfUserPath(uid int) string { return filepath.Join(RootFolder, OfUser(uid), RegionName) }
