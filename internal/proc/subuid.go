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
	account     int // under which its UIDs are counted
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
	r, is := subUIDRangeOf(uid)
	return r.owner, is
}

// Account returns the number under which a user is counted where each user may have a bounded part.
// It is the UID or, for a UID in /etc/subuid, the UID of the user that it is delegated to. Otherwise a user
// would get as many parts as delegated UIDs.
func Account(uid int) int {
	if r, is := subUIDRangeOf(uid); is {
		return r.account
	}
	return uid
}

// countRanges sets the account of each range: the owner's UID, if the owner is a number or in /etc/passwd. For
// another owner it is a number below -1 for all ranges of that owner: a directory service might not
// respond. So it is for root, which has no bounds: what runs in root's containers has.
func countRanges(ranges []subUIDRange) {
	uids := map[string]int{}
	for i := range ranges {
		r := &ranges[i]
		if _, known := uids[r.owner]; !known {
			uids[r.owner] = -2 - i
			if uid, err := strconv.ParseUint(r.owner, 10, 32); err == nil && uid != 0 {
				uids[r.owner] = int(uid)
			} else if uid, _, err := LocalUser(r.owner); err == nil && uid != 0 {
				uids[r.owner] = int(uid)
			}
		}
		r.account = uids[r.owner]
	}
}

func subUIDRangeOf(uid int) (r subUIDRange, is bool) {
	subUIDs.Lock()
	defer subUIDs.Unlock()
	if file, err := os.Stat(subUIDFile); err != nil {
		subUIDs.file, subUIDs.ranges = nil, nil
	} else if was := subUIDs.file; was == nil || !os.SameFile(file, was) || file.Size() != was.Size() || !file.ModTime().Equal(was.ModTime()) {
		subUIDs.file, subUIDs.ranges = file, nil
		if f, err := os.Open(subUIDFile); err == nil {
			subUIDs.ranges = parseSubUIDs(f)
			_ = f.Close()
			countRanges(subUIDs.ranges)
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
			out = append(out, subUIDRange{owner: field[0], from: from, count: count})
		}
	}
	return out
}

func findSubUID(ranges []subUIDRange, uid int) (r subUIDRange, is bool) {
	for _, r := range ranges {
		if uid >= r.from && uid-r.from < r.count {
			return r, true
		}
	}
	return r, false
}
