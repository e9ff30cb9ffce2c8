// Package privsep divides root's agent into two processes, so that the one which reads what tenants write,
// and answers them, can neither write anything of theirs nor become another user.
//
//	parent   is root. It has claimed the agent's socket, runs ration reap as users, and reads nothing
//	         of a tenant's.
//	reader   is of a user of its own, with two capabilities: to read all files (CAP_DAC_READ_SEARCH) and
//	         to look into all processes (CAP_SYS_PTRACE). It does all else that an agent does. A filter
//	         of system calls takes from the second what writes (filter.go).
//
// They are connected by a pair of sockets. Each message is a line of JSON:
//
//	reader   {"ready":true}                          it has looked once
//	         {"id":7,"uid":1000,"paths":["/..."]}    have the dead of these regions returned, as that user
//	parent   {"id":7,"error":"..."}                  that is done, or why not
//
// The parent takes each request for one of a reader that an attacker has taken over: it has bounds for
// all of it, and what it does in the end, any user could have done to the own jobs. It works on no more
// than MaxReaping at a time, and reads the next request after that. So one who asks without end, or
// never takes an answer, waits for itself.
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
	// MaxReaping is how many processes that reap run at once, and MaxPaths how many regions each of
	// them is given.
	MaxReaping = 4
	MaxPaths   = 64
	// maxPath is the kernel's bound of a path, and maxLine of a request: as many as there may be of that.
	maxPath = 4096
	maxLine = MaxPaths*(maxPath+16) + 1024
	// maxError is how much of an error is handed on.
	maxError = 1024
	// reapTimeout is after what a process that reaps is killed.
	reapTimeout = 5 * time.Second
	// endTimeout is after what a reader that was asked to end is killed. It takes one second where its
	// clients do not take their answers.
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

// ErrRefused is returned for a request that the parent does nothing about.
var ErrRefused = errors.New("refused")

// check says what is wrong with a request, which may be an attacker's.
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

// checkPath refuses what is not the path of a region. Root's are in root's folder only, which no other user
// can write: root's process must not be led to anything else.
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
