package job

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// A standing job is one that `ration create` made. It has no command whose end would be its
// own: programs join it where an operator puts it (a container, a batch system), and it stays
// until `ration rm`. The file CreatedName in its folder makes it one. The file has the time at
// which the region was made, as the file of that name at the well-known path, where it is
// mounted: a process that finds another region there is refused.
//
// Stand writes the file last, under the lock of the creator. So a job without it, whatever its
// creator died of, is one that has ended, and is removed as such.

// CreatedName is the name of that file.
const CreatedName = "created"

// PreloadsName is the file beside it with the list of libraries that programs in a container
// preload.
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
	return nil
}

// StandingSince returns when a standing job's region was made, in Unix nanoseconds, and false
// for a job that is none.
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
	var buf [32]byte
	n, _ := unix.Pread(fd, buf[:], 0)
	created, err = strconv.ParseInt(strings.TrimSuffix(string(buf[:max(n, 0)]), "\n"), 10, 64)
	return created, err == nil
}

func isStanding(j Job) bool {
	_, standing := StandingSince(j)
	return standing
}
