package job

import (
	"path/filepath"
	"strconv"
	"strings"
)

// A policy has all processes of a user in one job, which is in root's folder of jobs whatever
// EnvFolder says: the library looks for it there (shim/userjob.c). Package policy makes it.

// RootFolder is root's folder of jobs.
const RootFolder = "/run/ration"

// ExemptName is the file, in the folder of a user's job, that says that the policy does not ration
// this user.
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

// OfUserPath returns the path of the region of a user's job, which need not exist.
func OfUserPath(uid int) string { return filepath.Join(RootFolder, OfUser(uid), RegionName) }
