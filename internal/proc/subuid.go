package proc

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// subUIDFile has the ranges of UIDs that users may use in containers, usually 65,536 for each user. A
// user can act as any UID of its ranges.
const subUIDFile = "/etc/subuid"

// subUIDRange is a line of that file.
type subUIDRange struct {
	owner       string // name or number
	from, count int
}

// subUIDs has the ranges as of the last read of the file.
var subUIDs struct {
	sync.Mutex
	file   os.FileInfo
	ranges []subUIDRange
}

// SubUIDOwner returns the user that a UID in /etc/subuid is delegated to, as a name or number like
// in the file. is is false for any other UID. It does not query a directory service.
func SubUIDOwner(uid int) (owner string, is bool) {
	r, _, is := subUIDRangeOf(uid)
	return r.owner, is
}

// Account returns the number under which a user is counted where each user may have a bounded part.
// It is the UID or, for a UID in /etc/subuid, a number below -1 for its whole range. Otherwise a
// user would get as many parts as delegated UIDs.
func Account(uid int) int {
	if _, line, is := subUIDRangeOf(uid); is {
		return -2 - line
	}
	return uid
}

func subUIDRangeOf(uid int) (r subUIDRange, line int, is bool) {
	subUIDs.Lock()
	defer subUIDs.Unlock()
	if file, err := os.Stat(subUIDFile); err != nil {
		subUIDs.file, subUIDs.ranges = nil, nil
	} else if was := subUIDs.file; was == nil || !os.SameFile(file, was) || file.Size() != was.Size() || !file.ModTime().Equal(was.ModTime()) {
		subUIDs.file, subUIDs.ranges = file, nil
		if f, err := os.Open(subUIDFile); err == nil {
			subUIDs.ranges = parseSubUIDs(f)
			_ = f.Close()
		}
	}
	return findSubUID(subUIDs.ranges, uid)
}

// parseSubUIDs parses lines of owner:first:count, and skips others.
func parseSubUIDs(text io.Reader) (out []subUIDRange) {
	for lines := bufio.NewScanner(text); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) != 3 {
			continue
		}
		from, err := strconv.Atoi(field[1])
		count, err2 := strconv.Atoi(strings.TrimSpace(field[2]))
		if err == nil && err2 == nil && from >= 0 && count > 0 {
			out = append(out, subUIDRange{field[0], from, count})
		}
	}
	return out
}

func findSubUID(ranges []subUIDRange, uid int) (r subUIDRange, line int, is bool) {
	for line, r := range ranges {
		if uid >= r.from && uid-r.from < r.count {
			return r, line, true
		}
	}
	return r, 0, false
}
