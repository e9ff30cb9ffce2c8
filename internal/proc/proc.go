// Package proc queries the kernel and the system's user database about processes and users.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxName is the length to which the kernel cuts a process's name.
const maxName = 15

// CalledBy reports whether a process has that name: the kernel's name, which is cut to maxName
// bytes, or the name in its command line, if the kernel gives it in time.
func CalledBy(pid int, name, kernel string) bool {
	if name == "" || name[:min(len(name), maxName)] == kernel {
		return name != ""
	}
	command := Command(pid, 4096)
	return len(command) > 0 && filepath.Base(command[0]) == name
}

// maxStatus is more than the length of /proc/PID/status with 65,536 groups, the most that a process can have.
// The PIDs are after the groups.
const maxStatus = 1 << 20

// Owner returns the UID and the name of a process, and its PID in its own PID namespace (0 if
// unknown), as the kernel reports them.
func Owner(pid int) (uid int, name string, own int, err error) {
	status, err := readStart("/proc/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return 0, "", 0, err
	}
	if uid, own, err = parseStatus(status); err != nil {
		return 0, "", 0, fmt.Errorf("reading the user of process %d: %w", pid, err)
	}
	comm, err := readStart("/proc/"+strconv.Itoa(pid)+"/comm", 64)
	return uid, strings.TrimSuffix(string(comm), "\n"), own, err
}

// OnlyUser returns the UID of a process that acts for one user alone: its real, effective, saved and file
// system UID are the same. Otherwise one is false, as for a set-uid program that another user has started.
func OnlyUser(pid int) (uid int, one bool, err error) {
	status, err := readStart("/proc/"+strconv.Itoa(pid)+"/status", 4096) // they are in the first lines
	if err != nil {
		return 0, false, err
	}
	_, line, _ := bytes.Cut(status, []byte("\nUid:\t"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	uids := bytes.Fields(line)
	if len(uids) != 4 {
		return 0, false, fmt.Errorf("reading the users of process %d: %d fields", pid, len(uids))
	}
	uid, err = strconv.Atoi(string(uids[0]))
	one = err == nil && !slices.ContainsFunc(uids, func(u []byte) bool { return !bytes.Equal(u, uids[0]) })
	return uid, one, err
}

// parseStatus returns the real UID and the PID in the innermost namespace from /proc/PID/status.
// The process's name, in the first line, cannot contain a newline.
func parseStatus(status []byte) (uid, own int, err error) {
	_, line, _ := bytes.Cut(status, []byte("\nUid:\t"))
	real, _, _ := bytes.Cut(line, []byte("\t"))
	if uid, err = strconv.Atoi(string(real)); err != nil {
		return 0, 0, err
	}
	_, line, _ = bytes.Cut(status, []byte("\nNSpid:\t"))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	if pids := bytes.Fields(line); len(pids) > 0 {
		own, _ = strconv.Atoi(string(pids[len(pids)-1]))
	}
	return uid, own, nil
}

// readStart returns at most the first most bytes of a file.
func readStart(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// UserName returns a user's name, or the UID if it has none. It caches a bounded number of users, for
// a minute, so that a program that reads every second does not query a directory service as often.
func UserName(uid int) string { return lookUp(uid).name }

// UID returns the UID of a user, given as a name or a number. As for chown, a number that is also
// the name of a user means that user. UID may query a directory service. If the query fails, it
// returns an error even for a number, because that may be a name.
func UID(user string) (uid int, err error) {
	number, err := UserNamed(user)
	if !errors.Is(err, ErrNoUser) {
		return number, err
	}
	if uid, err := strconv.Atoi(user); err == nil && uid >= 0 && strconv.Itoa(uid) == user {
		return uid, nil
	}
	return 0, err
}

// ErrNoUser is returned for a name that no user has.
var ErrNoUser = errors.New("no such user")

// UserNamed returns the UID of the user with a name, or ErrNoUser.
func UserNamed(name string) (uid int, err error) {
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown), errors.Is(err, fs.ErrNotExist): // or there is no list of users
		return 0, fmt.Errorf("%s: %w", name, ErrNoUser)
	case err != nil:
		return 0, fmt.Errorf("looking up user %s: %w", name, err)
	}
	return strconv.Atoi(u.Uid)
}

// Home returns a user's home, or "". It uses the cache of UserName.
func Home(uid int) string { return lookUp(uid).home }

// PrimaryGroup returns the primary group of a user, which its processes usually have. The kernel lets a process look
// into another one only if user and group are the same.
func PrimaryGroup(uid int) (gid uint32, err error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return 0, fmt.Errorf("looking up user %d: %w", uid, err)
	}
	n, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(n), err
}

type userEntry struct {
	name, home string
	until      time.Time // then the user database is asked again
	asked      bool      // it is being asked
}

// lookUp returns what the user database says of a user, or said less than nameFor ago. It queries without the lock, because a
// directory service may not respond. Of a user who is known already, it does not wait for long, and only one caller asks. When
// the service was slow, nobody waits for it about such users for a while.
func lookUp(uid int) userEntry {
	at := now()
	users.Lock()
	entry, known := users.of[uid]
	if known && (entry.asked || at.Before(entry.until)) {
		users.Unlock()
		return entry
	}
	entry.until = at.Add(nameFor)
	if known {
		entry.asked = true
		users.of[uid] = entry
	}
	slow := at.Before(users.slow)
	users.Unlock()
	if !known {
		return askUser(uid, entry)
	}
	answer := make(chan userEntry, 1)
	go func() { answer <- askUser(uid, entry) }()
	if slow {
		return entry
	}
	select {
	case entry = <-answer:
	case <-time.After(askTimeout):
		users.Lock()
		users.slow = at.Add(nameFor)
		users.Unlock()
	}
	return entry
}

// askUser queries the user database. If the query fails, it keeps what was known of the user.
func askUser(uid int, entry userEntry) userEntry {
	number := strconv.Itoa(uid)
	u, err := lookUpID(number)
	var unknown user.UnknownUserIdError
	switch {
	case err == nil:
		entry.name, entry.home = u.Username, u.HomeDir
	case entry.name == "" || errors.As(err, &unknown):
		entry.name, entry.home = number, ""
	}
	entry.asked = false
	users.Lock()
	defer users.Unlock()
	if _, known := users.of[uid]; !known && len(users.of) >= maxUserNames {
		clear(users.of)
	}
	users.of[uid] = entry
	return entry
}

// now and lookUpID are variables for tests.
var (
	now      = time.Now
	lookUpID = user.LookupId
)

// nameFor bounds how long a name counts: a UID may be given to another user.
const nameFor = time.Minute

const maxUserNames = 4096

var users = struct {
	sync.Mutex
	of   map[int]userEntry // by UID
	slow time.Time         // until then, a lookup was slow
}{of: map[int]userEntry{}}
