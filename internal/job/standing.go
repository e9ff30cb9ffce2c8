package job

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// A standing job is made by `ration create`. It does not end with a command: programs join it where
// an operator mounts it (a container, a batch system), and it stays until `ration rm`. The file
// CreatedName in its folder makes it a standing job. The file contains the creation time of the
// region. It is mounted with the region at the well-known path; a process that finds another region
// there is refused.
//
// Stand writes the file last, under the creator's lock. If a creator dies before that, its job
// counts as ended and is removed.

// CreatedName is the name of that file. It is LeavingName while a policy's service takes the job back: if the job then stays
// after all, or the service dies before it removes anything, the file gets its name back.
const (
	CreatedName = "created"
	LeavingName = "leaving"
)

// PreloadsName is the file beside it that becomes /etc/ld.so.preload in a container.
const PreloadsName = "ld.so.preload"

// Stand makes the job a standing one. library is the path of the library in a container.
func (l *Lock) Stand(created int64, library string) error {
	err := safepath.Replace(filepath.Join(l.Folder, PreloadsName), []byte(library+"\n"), 0o644)
	if err == nil {
		err = safepath.Replace(filepath.Join(l.Folder, CreatedName), []byte(strconv.FormatInt(created, 10)+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("creating job %s: %w", l.Job.Name, err)
	}
	keepFromAging(l.Folder)
	return nil
}

// StandingSince returns when a standing job's region was made, in Unix nanoseconds, and false for any other
// job.
func StandingSince(j Job) (created int64, standing bool) {
	if j.Name == "" {
		return 0, false
	}
	dir, err := safepath.OpenFolder(filepath.Dir(j.Path))
	if err != nil {
		return 0, false
	}
	defer unix.Close(dir)
	return standingIn(dir)
}

// standingIn is StandingSince by the descriptor of the job's folder.
func standingIn(dir int) (created int64, standing bool) {
	fd, err := safepath.OpenAt(dir, CreatedName, unix.O_RDONLY, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	created, err = strconv.ParseInt(strings.TrimSuffix(string(readStart(fd, 32)), "\n"), 10, 64)
	return created, err == nil
}

func isStanding(j Job) bool {
	_, standing := StandingSince(j)
	return standing && !PolicyEnded(j.Path)
}

// LeftName is a file in the folder of a user's job or run that was left to its processes when the policy ended: no program joins
// it, and it ends with them. Only root can write that folder.
const LeftName = "left"

// PolicyEnded reports whether a job is one of these.
func PolicyEnded(path string) bool {
	_, is := PolicyUser(path)
	return is && safepath.Exists(filepath.Join(filepath.Dir(path), LeftName))
}
