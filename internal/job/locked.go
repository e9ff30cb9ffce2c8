package job

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/region"
	"ration/internal/safepath"
)

// A region can be anywhere: in a container it may have a path that no other process has. But every
// process of a job holds a lock on its slot's byte of the file. The kernel lists all locks with the
// file's device and inode and the PID, and the descriptors of that process lead to the file.

// Bounds on reading, because any user can make the kernel's list of locks longer.
const (
	maxLockList   = 8 << 20
	maxLockedFile = 1024 // files that may be regions
	maxLockers    = 4096 // processes per file that are named
	maxLockedPIDs = 4    // processes per file whose descriptors are searched for it
	maxReadings   = 64   // of a list that changes all the time: on a busy machine one in ten is equal to the one before
	lockPage      = 2048 // bytes: a list below that is read at once
)

// FileID identifies a file, which may have several paths.
type FileID = identity

// FileOf returns the identity of the file that st describes.
func FileOf(st *unix.Stat_t) FileID { return FileID{uint64(st.Dev), st.Ino} }

// IsRegionPath reports whether a path ends with the file name of regions. It accepts the form in
// which the kernel writes the path of a deleted file.
func IsRegionPath(path string) bool {
	return filepath.Base(strings.TrimSuffix(path, " (deleted)")) == RegionName
}

// LockedFile is a file with a lock on a byte that a region uses for a slot.
type LockedFile struct {
	ID   FileID
	PIDs []int // of the processes that hold such locks
}

// LockedFiles returns the files with locks, of all visible processes, that may be regions. all is
// true if there are no others. It stops reading at end: many locks make the kernel's list long, and
// the time to read it grows faster than its length.
//
// The kernel gives a page of the list with each read, and continues at a number of the list, not at an
// entry. If locks before that number are dropped meanwhile, entries are left out, also of locks that
// are held all the time. So the list is read until two readings are equal. All that was found in
// any of them is returned.
func LockedFiles(end <-chan struct{}) (files []LockedFile, all bool, err error) {
	var text, last []byte
	for n := 0; n < maxReadings && len(text) < maxLockList; n++ {
		next, whole, err := readLocks(end)
		if err != nil {
			return nil, false, err
		}
		text = append(text, next...)
		if all = whole && (len(next) < lockPage || n > 0 && bytes.Equal(next, last)); all || !whole {
			break
		}
		last = next
	}
	files, whole := divideLocked(parseLocks(text), maxLockedFile, ownerOf)
	return files, all && whole, nil
}

func readLocks(end <-chan struct{}) (text []byte, all bool, err error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	return readUntil(f, maxLockList, end)
}

// readUntil reads at most most bytes, until end is closed. all is false if there is more.
func readUntil(r io.Reader, most int, end <-chan struct{}) (text []byte, all bool, err error) {
	part := make([]byte, 64<<10)
	for len(text) < most {
		select {
		case <-end:
			return text, false, nil
		default:
		}
		n, err := r.Read(part)
		text = append(text, part[:n]...)
		if err == io.EOF {
			return text, true, nil
		}
		if err != nil {
			return text, false, err
		}
	}
	return text, false, nil
}

// parseLocks returns the files with locks of slots in the kernel's list:
//
//	12: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
func parseLocks(text []byte) (out []LockedFile) {
	type locker struct{ file, pid int }
	index, named := map[FileID]int{}, map[locker]bool{}
	for line := range bytes.Lines(text) {
		field := bytes.Fields(line)
		if len(field) != 8 || string(field[1]) != "POSIX" || string(field[3]) != "WRITE" || !bytes.Equal(field[6], field[7]) {
			continue
		}
		at, err := strconv.ParseInt(string(field[6]), 10, 64)
		pid, err2 := strconv.Atoi(string(field[4]))
		if errors.Join(err, err2) != nil || pid <= 0 || !region.IsSlotByte(at) {
			continue
		}
		id, err := parseFileID(string(field[5]))
		if err != nil {
			continue
		}
		i, known := index[id]
		if !known {
			i = len(out)
			index[id], out = i, append(out, LockedFile{ID: id})
		}
		if f := &out[i]; len(f.PIDs) < maxLockers && !named[locker{i, pid}] {
			named[locker{i, pid}] = true
			f.PIDs = append(f.PIDs, pid)
		}
	}
	return out
}

// divideLocked returns at most most of the files, and whether that is all of them. If there are
// more, it takes one file of each user in turn, so that a user with thousands of files hides no
// file of another user.
func divideLocked(files []LockedFile, most int, owner func(pid int) int) (out []LockedFile, all bool) {
	if len(files) <= most {
		return files, true
	}
	uids := map[int]int{} // by PID
	turns := make([]int, len(files))
	next := map[int]int{} // by user
	order := make([]int, len(files))
	for i, f := range files {
		pid := f.PIDs[0]
		if _, known := uids[pid]; !known {
			uids[pid] = owner(pid)
		}
		order[i], turns[i] = i, next[uids[pid]]
		next[uids[pid]]++
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turns[a], turns[b]) })
	for _, i := range order[:most] {
		out = append(out, files[i])
	}
	return out, false
}

// ownerOf returns the user of a process, or -1.
func ownerOf(pid int) int {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return -1
	}
	return int(st.Uid)
}

// parseFileID parses 00:19:1042: the device's numbers, hexadecimal, and the inode's.
func parseFileID(text string) (id FileID, err error) {
	part := strings.Split(text, ":")
	if len(part) != 3 {
		return id, errors.New("not a device and an inode")
	}
	major, err := strconv.ParseUint(part[0], 16, 32)
	minor, err2 := strconv.ParseUint(part[1], 16, 32)
	ino, err3 := strconv.ParseUint(part[2], 10, 64)
	return FileID{unix.Mkdev(uint32(major), uint32(minor)), ino}, errors.Join(err, err2, err3)
}

// OpenFolder opens the folder of the file, as seen by a process that holds the file's lock. It
// returns the file's name in the folder, and a path for messages. It checks that the name leads to
// that file, and that the file is a region.
func (f LockedFile) OpenFolder() (dir int, name, path string, err error) {
	err = fmt.Errorf("no process has it open")
	for _, pid := range f.PIDs[:min(len(f.PIDs), maxLockedPIDs)] {
		if dir, name, path, err = f.openThrough(pid); err == nil {
			return dir, name, path, nil
		}
	}
	return -1, "", path, err
}

func (f LockedFile) openThrough(pid int) (dir int, name, path string, err error) {
	root, path, err := region.OpenRoot(pid, region.FileKey{Dev: f.ID.dev, Ino: f.ID.ino})
	if err != nil {
		return -1, "", "", err
	}
	defer unix.Close(root)
	if !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") {
		return -1, "", path, fmt.Errorf("%s: the file was removed while processes use it", path)
	}
	// Open it below the process's own root, and follow no link.
	dir, err = safepath.OpenFolderBelow(root, filepath.Dir(path))
	if err != nil {
		return -1, "", path, fmt.Errorf("opening the folder of %s: %w", path, err)
	}
	name = filepath.Base(path)
	if id, err := identityIn(dir, name); err != nil || id != f.ID {
		_ = unix.Close(dir)
		if errors.Is(err, safepath.ErrMount) {
			return -1, "", path, fmt.Errorf("%s: covered by a %w", path, err)
		}
		return -1, "", path, fmt.Errorf("%s: another file is there by now", path)
	}
	if err := region.CheckMagic(dir, name); err != nil {
		_ = unix.Close(dir)
		return -1, "", path, err
	}
	if id, err := identityOf(path); err != nil || id != f.ID {
		path = fmt.Sprintf("/proc/%d/root%s", pid, path) // the same path is another file for this process
	}
	return dir, name, path, nil
}
