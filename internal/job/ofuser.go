package job

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
