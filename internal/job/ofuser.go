package job

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A policy has all processes of a user in one job, which is in root's folder of jobs whatever
// EnvFolder says: the library looks for it there (shim/userjob.c). Package policy makes it.

// RootFolder is root's folder of jobs.
const RootFolder = "/run/ration"

// ExemptName is a symbolic link, in the folder of a user's job, that says that the policy does not
// ration this user. It leads nowhere. It is the user's own, which shows in every user namespace whose it
// is; and unlike a file of the user's nothing can be written into it.
const ExemptName = "exempt"

const ofUserPrefix = "user-"

// OfUser returns the name of a user's job.
func OfUser(uid int) string { return ofUserPrefix + strconv.Itoa(uid) }

// UserOf returns whose job has a name.
func UserOf(name string) (uid int, is bool) {
	digits, is := strings.CutPrefix(name, ofUserPrefix)
	if !is {
		return 0, false
	}
	return parseUID(digits)
}

// RunOf returns whose run has a name: a job of a user's own, whose limits are taken out of those of
// the user's job.
func RunOf(name string) (uid int, run string, is bool) {
	rest, is := strings.CutPrefix(name, ofUserPrefix)
	digits, run, cut := strings.Cut(rest, "-")
	if !is || !cut || run == "" {
		return 0, "", false
	}
	uid, is = parseUID(digits)
	return uid, run, is
}

// isOfPolicy reports whether a name in root's folder of jobs is that of a user's job or run: nobody can choose
// one, and they are jobs like any other for who looks.
func isOfPolicy(name string) bool {
	_, user := UserOf(name)
	_, _, run := RunOf(name)
	return user || run
}

// RunOfUser returns the name of a user's run.
func RunOfUser(uid int, run string) string { return OfUser(uid) + "-" + run }

// RunsOf returns the runs of a user, or of all users where uid is negative, by their folders.
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
