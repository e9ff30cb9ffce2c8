package proc

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// lentFile says which ranges of UIDs are lent to users, for containers: 65,536 to each, as a rule. A user
// can act as any of them.
const lentFile = "/etc/subuid"

// lentRange is a line of that file.
type lentRange struct {
	owner       string // name or number
	from, count int
}

// lent are the ranges of the file as it was read last.
var lent struct {
	sync.Mutex
	file   os.FileInfo
	ranges []lentRange
}

// LentTo returns the user to whom a UID is lent, by name or number, and false for one that is not. It
// asks no directory service.
func LentTo(uid int) (owner string, is bool) {
	r, _, is := lentRangeOf(uid)
	return r.owner, is
}

// Account returns by which account a user counts where each has a bounded part of something: an own one, or
// for a UID that is lent that of its range, a number below -1. Otherwise a user would have as many parts
// as UIDs.
func Account(uid int) int {
	if _, line, is := lentRangeOf(uid); is {
		return -2 - line
	}
	return uid
}

func lentRangeOf(uid int) (r lentRange, line int, is bool) {
	lent.Lock()
	defer lent.Unlock()
	if file, err := os.Stat(lentFile); err != nil {
		lent.file, lent.ranges = nil, nil
	} else if lent.file == nil || !os.SameFile(file, lent.file) || file.Size() != lent.file.Size() || !file.ModTime().Equal(lent.file.ModTime()) {
		lent.file, lent.ranges = file, readLent()
	}
	return findLent(lent.ranges, uid)
}

func readLent() []lentRange {
	f, err := os.Open(lentFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseLent(f)
}

// parseLent parses lines of owner:first:count. One that is none has none.
func parseLent(text io.Reader) (out []lentRange) {
	for lines := bufio.NewScanner(text); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) != 3 {
			continue
		}
		from, err := strconv.Atoi(field[1])
		count, err2 := strconv.Atoi(strings.TrimSpace(field[2]))
		if err == nil && err2 == nil && from >= 0 && count > 0 {
			out = append(out, lentRange{field[0], from, count})
		}
	}
	return out
}

func findLent(ranges []lentRange, uid int) (r lentRange, line int, is bool) {
	for line, r := range ranges {
		if uid >= r.from && uid-r.from < r.count {
			return r, line, true
		}
	}
	return r, 0, false
}
