package job

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
	"ration/internal/termtext"
)

// The file `rest` in the folder of a job that may fall asleep by itself has one line of JSON, written in place by the
// process that watches the job. That process holds a shared lock of the file. Without the lock the line counts for
// nothing: the job may have worked since.

const restName = "rest"

// maxRest bounds the file, and maxCannot Rest.Cannot, in bytes.
const (
	maxRest   = 1 << 10
	maxCannot = 400
)

// Rest is what the process that watches a job knows about its rest. It is the word of the job's user.
type Rest struct {
	After  time.Duration `json:"after"`            // the job falls asleep when it has done nothing on its devices for so long
	Manual bool          `json:"manual,omitempty"` // then only ration wake wakes it
	Since  int64         `json:"since,omitempty"`  // Unix nanoseconds since when it has done nothing; 0 if it works, or if that is unknown
	Sleeps uint64        `json:"sleeps,omitempty"` // how often the job had begun to fall asleep then: Since counts only for that
	Cannot string        `json:"cannot,omitempty"` // why it could not be put to sleep the last time
}

// YieldAfter returns for how long a job that falls asleep after that time must have been unused to sleep earlier, for a
// command or a user that waits for its room.
func YieldAfter(after time.Duration) time.Duration { return after / 10 }

// Yielding returns the jobs that must sleep so that there is enough room, in their order. The jobs at the end, which were
// used last, stay awake if they can. All of them together are enough.
func Yielding[T any](jobs []T, enough func([]T) bool) []T {
	for i := len(jobs) - 1; i >= 0; i-- {
		if rest := slices.Delete(slices.Clone(jobs), i, i+1); enough(rest) {
			jobs = rest
		}
	}
	return jobs
}

// RestFile is the file of a process that watches a job.
type RestFile struct {
	file *os.File
	last Rest
}

// WatchRest opens the file for a process that watches the job in that folder.
func WatchRest(folder string) (*RestFile, error) {
	path := filepath.Join(folder, restName)
	fd, err := safepath.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	lock := wholeFile(shared)
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return &RestFile{file: os.NewFile(uintptr(fd), path)}, nil
}

// ShowTo lets that user and root read the file, and nobody else. Root owns it, because the owner of a file can write it, and
// so fill its file system. On a file system without access control lists only root can read it.
func (f *RestFile) ShowTo(uid int) error {
	list := binary.LittleEndian.AppendUint32(nil, 2) // the version; linux/posix_acl_xattr.h
	for _, entry := range []struct {
		tag, may uint16
		id       uint32
	}{{aclOwner, 6, aclNoID}, {aclUser, 4, uint32(uid)}, {aclGroup, 0, aclNoID}, {aclMask, 4, aclNoID}, {aclOther, 0, aclNoID}} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, entry.may)
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	err := errors.Join(f.file.Chown(0, 0), f.file.Chmod(0o600))
	if err == nil {
		err = unix.Fsetxattr(int(f.file.Fd()), "system.posix_acl_access", list, 0)
	}
	if errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	return err
}

// The kinds of entries in an access control list, as in linux/posix_acl.h.
const (
	aclOwner, aclUser, aclGroup, aclMask, aclOther = 0x01, 0x02, 0x04, 0x10, 0x20
	aclNoID                                        = 1<<32 - 1
)

// Write writes what is known now, if it has changed. A reader that meets a half-written line finds no line.
func (f *RestFile) Write(r Rest) error {
	r.Cannot = cutText(r.Cannot, maxCannot)
	if r == f.last {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if err := f.file.Truncate(0); err != nil {
		return fmt.Errorf("writing %s: %w", f.file.Name(), err)
	}
	if _, err := f.file.WriteAt(line, 0); err != nil {
		return fmt.Errorf("writing %s: %w", f.file.Name(), err)
	}
	f.last = r
	return nil
}

// Close ends the watch.
func (f *RestFile) Close() { _ = f.file.Close() }

// readRest reads the file in a folder; nil if no process watches the job.
func readRest(dir int) *Rest {
	fd, err := safepath.OpenAt(dir, restName, unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if !inUseBy(fd) {
		return nil
	}
	return parseRest(readStart(fd, maxRest))
}

func parseRest(text []byte) *Rest {
	var r Rest
	if len(text) == 0 || text[len(text)-1] != '\n' || json.Unmarshal(text, &r) != nil || r.After <= 0 {
		return nil
	}
	r.Since, r.Cannot = max(r.Since, 0), cutText(r.Cannot, maxCannot)
	return &r
}

// cutText makes a text printable, and cuts a long one.
func cutText(text string, most int) string {
	return termtext.Printable(text[:min(len(text), most)])
}
