package job

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/safepath"
)

// EnclosingName is a file in WellKnown under ration run --keep: the name of the job, which its region alone does not tell.
const EnclosingName = "name"

// Enclosing returns the name of the job of ration run --keep that all programs here are in, and a text that also names its owner.
func Enclosing() (name, text string, is bool) {
	fd, err := safepath.Open(filepath.Join(WellKnown, EnclosingName), unix.O_RDONLY, 0)
	if err != nil {
		return "", "", false
	}
	defer unix.Close(fd)
	name = strings.TrimSuffix(string(readStart(fd, limit.MaxName+1)), "\n")
	var st unix.Stat_t
	if limit.CheckName("job", name) != nil || unix.Lstat(filepath.Join(WellKnown, RegionName), &st) != nil {
		return "", "", false
	}
	return name, "job " + name + " of " + proc.UserName(int(st.Uid)), true
}
