// Package proc asks the kernel and the system's user database about processes.
package proc

import (
	"bytes"
	"os"
	"os/user"
	"strconv"
	"sync"
)

// Stopped reports whether a signal or a debugger has stopped a process.
func Stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	at := bytes.LastIndexByte(stat, ')') // the name before it may hold anything
	return err == nil && at >= 0 && len(stat) > at+2 && (stat[at+2] == 'T' || stat[at+2] == 't')
}

// UserName returns a user's name, or the UID where it has none. It asks once for
// each user: a program that reads every second must not query a directory service
// as often.
func UserName(uid int) string {
	if name, known := userNames.Load(uid); known {
		return name.(string)
	}
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	userNames.Store(uid, name)
	return name
}

var userNames sync.Map // UID (int) to name (string)
