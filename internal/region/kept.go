package region

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
)

// KeptBy returns the processes, by the PIDs that this one sees, that keep the memory of a slot's
// owner, besides the owner itself. These are its fork children, which have its driver files, and
// also the page that libration.so maps at the slot's number (region_keep in shim/region/alive.c).
// It stops when left returns false.
func (r *Region) KeptBy(slot int, left func() bool) (pids []int) {
	if r.file == nil || !self().sees {
		return nil
	}
	list, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer list.Close()
	for left() {
		names, err := list.Readdirnames(64)
		for _, name := range names {
			pid, e := strconv.Atoi(name)
			if e == nil && left() && r.file.keptBy(pid, slot) {
				pids = append(pids, pid)
			}
		}
		if err != nil {
			break
		}
	}
	return pids
}

// keptBy reports whether a process maps the page of a slot, as far as the kernel says it in time.
func (f *file) keptBy(pid, slot int) bool {
	keeps, _ := proc.Ask(pid, func() bool { return f.listsPage(pid, slot) }, nil)
	return keeps
}

// listsPage is keptBy, and may wait for as long as a tenant likes.
func (f *file) listsPage(pid, slot int) bool {
	maps, err := inspect().OpenMaps(pid)
	if err != nil {
		return false
	}
	defer maps.Close()
	return mapsPage(io.LimitReader(maps, maxMaps), int64(slot)*int64(os.Getpagesize()), f.key, f.path)
}

// mapsPage reports whether a list of mappings has a shared page of a file at an offset that can be
// neither read nor written:
//
//	7f12a4000000-7f12a4001000 ---s 00003000 00:19 1042    /run/ration/train/region
//
// The file is identified by device and inode or, because a stacked file system may show others, by
// name.
func mapsPage(maps io.Reader, offset int64, key inode, path string) bool {
	place := []byte(fmt.Sprintf(" ---s %08x ", offset))
	by := []byte(fmt.Sprintf(" %02x:%02x %d ", unix.Major(key.dev), unix.Minor(key.dev), key.ino))
	for lines := bufio.NewReader(maps); ; {
		line, err := lines.ReadBytes('\n')
		if bytes.Contains(line, place) && (bytes.Contains(line, by) || bytes.HasSuffix(line, []byte(" "+path+"\n"))) {
			return true
		}
		if err != nil {
			return false
		}
	}
}
