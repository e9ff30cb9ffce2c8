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

// A region can be anywhere: a container's is at a path that only the container has. But every
// process of a job has its slot's byte of the file locked, and the kernel lists all locks, with
// the file's device and inode and the process. The process's descriptors lead to the file.

// Bounds of what is taken from the kernel's list. Whoever takes locks makes it longer.
const (
	maxLockList   = 8 << 20
	maxLockedFile = 1024 // files that may be regions
	maxLockedPIDs = 4    // of each file: processes through which it is looked for
	maxLockedFDs  = 4096 // descriptors of each process that are looked at
)

// FileID is a file, by whatever path.
type FileID = identity

// FileOf returns which file it is of which a process has asked the kernel.
func FileOf(st *unix.Stat_t) FileID { return FileID{uint64(st.Dev), st.Ino} }

// IsRegionPath reports whether a path is called as those of regions are, as far as that can be
// said of a file that is gone.
func IsRegionPath(path string) bool {
	return filepath.Base(strings.TrimSuffix(path, " (deleted)")) == RegionName
}

// LockedFile is a file with a lock where a region has those of its slots.
type LockedFile struct {
	ID   FileID
	PIDs []int // that hold such locks
}

// LockedFiles returns the files that may be regions, of all processes that this one sees,
// and whether these are all. Who has many locks makes the kernel's list long, and reading it
// slower than it is long: it is read until end.
func LockedFiles(end <-chan struct{}) (files []LockedFile, all bool, err error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, all, err := readUntil(f, maxLockList, end)
	files, whole := divideLocked(parseLocks(text), maxLockedFile, ownerOf)
	return files, all && whole, err
}

// readUntil reads so many bytes at most, until end, and whether that is all there is.
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

// parseLocks takes the locks of slots from the kernel's list:
//
//	12: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480
func parseLocks(text []byte) (out []LockedFile) {
	index := map[FileID]int{}
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
		if f := &out[i]; len(f.PIDs) < maxLockedPIDs && !slices.Contains(f.PIDs, pid) {
			f.PIDs = append(f.PIDs, pid)
		}
	}
	return out
}

// divideLocked returns so many of the files at most, and whether these are all. Where there are more,
// the users who have them locked take turns: one who locks thousands hides no other's.
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

// OpenFolder opens the folder of the file, as a process that has the file locked sees it, and
// returns the file's name in it and a path for people. What is there has been compared: it is
// that file, and it was made as a region. The error is for a file that is none, or cannot be
// reached.
func (f LockedFile) OpenFolder() (dir int, name, path string, err error) {
	err = fmt.Errorf("no process has it open")
	for _, pid := range f.PIDs {
		if dir, name, path, err = f.openThrough(pid); err == nil {
			return dir, name, path, nil
		}
	}
	return -1, "", path, err
}

func (f LockedFile) openThrough(pid int) (dir int, name, path string, err error) {
	// By one descriptor of its folder: it stays that process's when the PID is another's.
	process, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", "", err
	}
	defer unix.Close(process)
	path, err = f.pathIn(process)
	if err != nil {
		return -1, "", "", err
	}
	if !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") {
		return -1, "", path, fmt.Errorf("%s: its file was removed, and processes go on with it", path)
	}
	root, err := unix.Openat(process, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", path, err
	}
	defer unix.Close(root)
	// Below the process's own root, whatever the path says, and through no link at all.
	dir, err = safepath.OpenFolderBelow(root, filepath.Dir(path))
	if err != nil {
		return -1, "", path, fmt.Errorf("opening the folder of %s: %w", path, err)
	}
	name = filepath.Base(path)
	if id, err := identityIn(dir, name); err != nil || id != f.ID {
		_ = unix.Close(dir)
		return -1, "", path, fmt.Errorf("%s: another file is there by now", path)
	}
	if err := region.CheckMagic(dir, name); err != nil {
		_ = unix.Close(dir)
		return -1, "", path, err
	}
	if id, err := identityOf(path); err != nil || id != f.ID {
		path = fmt.Sprintf("/proc/%d/root%s", pid, path) // not by that path from here
	}
	return dir, name, path, nil
}

// pathIn returns the path of the file, by a descriptor of it that a process has.
func (f LockedFile) pathIn(process int) (string, error) {
	fd, err := unix.Openat(process, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	list := os.NewFile(uintptr(fd), "fd")
	defer list.Close()
	for looked := 0; looked < maxLockedFDs; {
		some, err := list.Readdirnames(64)
		for _, name := range some {
			looked++
			// Without asking the file's own system, which may be one of the tenant's and never answer.
			var st unix.Statx_t
			if unix.Statx(fd, name, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil ||
				(FileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) != f.ID {
				continue
			}
			buf := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(fd, name, buf)
			return string(buf[:max(n, 0)]), err
		}
		if err != nil {
			break
		}
	}
	return "", errors.New("no process that has it locked has it open")
}
