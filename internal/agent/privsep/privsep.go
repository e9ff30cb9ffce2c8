// Package privsep divides root's agent into two processes, so that the one that reads what tenants write, and
// answers them, can neither write their files nor become another user.
//
//	parent   is root. It has claimed the agent's socket, runs ration reap as users, and reads nothing
//	         of a tenant's.
//	reader   is of a user of its own, with two capabilities: to read all files (CAP_DAC_READ_SEARCH) and
//	         to look into all processes (CAP_SYS_PTRACE). It does all else that an agent does. A filter
//	         of system calls takes from the second what writes (filter.go).
//
// They are connected by a pair of sockets. Each message is a line of JSON:
//
//	reader   {"ready":true}                          it has scanned once
//	         {"id":7,"uid":1000,"paths":["/..."]}    have the dead of these regions returned, as that user
//	parent   {"id":7,"error":"..."}                  that is done, or why not
//
// The parent treats each request as if an attacker had taken over the reader: all of it is bounded, and the
// result is something that any user could do to its own jobs. The parent works on at most MaxReaping requests
// at a time, and reads the next one after that. So a reader that asks without end, or never reads an answer,
// only delays itself.
//
// Neither lives without the other:
//
//	the parent is asked to end   it closes its half of the pair, which asks the reader to; then it waits
//	the parent is killed         the kernel kills the reader (PR_SET_PDEATHSIG)
//	the reader ends, or is       the parent ends, with the same status
//	killed
//	the reader breaks the        the parent kills it
//	rules, or does not end
//
// The lock on the agent's folder belongs to a file that both have open: the next agent begins after the
// last of the two.
package privsep

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"ration/internal/job"
)

const (
	// MaxReaping is how many ration reap run at once, and MaxPaths how many regions each gets.
	MaxReaping = 4
	MaxPaths   = 64
	// maxPath is the kernel's bound of a path, and maxLine the bound of a request with MaxPaths of them.
	maxPath = 4096
	maxLine = MaxPaths*(maxPath+16) + 1024
	// maxError is how much of an error is passed on.
	maxError = 1024
	// reapTimeout is after how long ration reap is killed.
	reapTimeout = 5 * time.Second
	// endTimeout is after how long a reader that was asked to end is killed. It takes one second if its
	// clients do not read their answers.
	endTimeout = 10 * time.Second
)

// Descriptors of the reader. Its standard ones are the parent's.
const (
	channelFD = 3 + iota
	SocketFD  // the agent's socket
	lockFD    // the file with the lock of the agent's folder
)

// message is a line from the reader.
type message struct {
	Ready bool     `json:"ready,omitempty"`
	ID    uint64   `json:"id,omitempty"`
	UID   int64    `json:"uid"`
	Paths []string `json:"paths,omitempty"`
}

// answer is a line from the parent.
type answer struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"`
}

// ErrRefused is returned for a request that the parent refuses.
var ErrRefused = errors.New("refused")

// check returns what is wrong with a request, which may be an attacker's.
func (m *message) check() error {
	if m.UID < 0 || m.UID >= math.MaxUint32 { // the last one means none to the kernel
		return fmt.Errorf("%w: there is no user %d", ErrRefused, m.UID)
	}
	if len(m.Paths) == 0 || len(m.Paths) > MaxPaths {
		return fmt.Errorf("%w: %d regions, where 1 to %d are taken", ErrRefused, len(m.Paths), MaxPaths)
	}
	for _, path := range m.Paths {
		if err := checkPath(path, m.UID == 0); err != nil {
			return err
		}
	}
	return nil
}

// checkPath refuses a path that is not that of a region. Root's regions are only in root's folder, which no
// other user can write: an attacker must not lead root's process anywhere else.
func checkPath(path string, root bool) error {
	switch {
	case len(path) > maxPath:
		return fmt.Errorf("%w: a path of %d bytes", ErrRefused, len(path))
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%w: %q is not a whole path", ErrRefused, path)
	case filepath.Base(path) != job.RegionName:
		return fmt.Errorf("%w: %q is not called as regions are", ErrRefused, path)
	case root && filepath.Dir(filepath.Dir(path)) != job.RootFolder:
		return fmt.Errorf("%w: %q is not of a job of root's", ErrRefused, path)
	}
	return nil
}
