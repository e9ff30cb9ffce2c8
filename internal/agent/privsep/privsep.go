// Package privsep splits root's agent into two processes. The process that reads files of tenants,
// and answers their requests, can neither write those files nor become another user.
//
//	parent   runs as root. It has claimed the agent's socket, runs ration reap as the users, and reads
//	         no file of a tenant.
//	reader   runs as a user of its own, with one capability: to read all files (CAP_DAC_READ_SEARCH).
//	         It does everything else that an agent does. A filter of system calls denies the calls
//	         with which it could get further (filter.go). It has no memory, file, key or terminal of
//	         root.
//
// They talk over a pair of sockets. Each message is a line of JSON:
//
//	reader   {"ready":true}                          the first scan is done
//	         {"id":7,"uid":1000,"paths":["/..."]}    run ration reap for these regions, as that user
//	         {"id":8,"uid":1000,"paths":["/..."],    end these processes of the job, which is over its
//	          "stop":[{"pid":9,"started":10}]}       limit, as that user; if the operator has chosen so
//	parent   {"id":7,"error":"..."}                  done, with or without an error
//	         {"id":8,"stopped":[9]}
//
// On a second pair the reader asks questions that need the right to trace a process (inspect.go).
//
// The parent treats each request as if an attacker had taken over the reader. It bounds every
// field, and does nothing that a user could not do to that user's own jobs. It works on at most
// MaxReaping requests at a time, and reads the next request after that. So a reader that sends
// requests without end, or never reads an answer, delays only itself.
//
// Each process ends when the other does:
//
//	the parent is asked to end      it closes its end of the pair, which asks the reader to end,
//	                                and waits for the reader
//	the parent is killed            the kernel kills the reader (PR_SET_PDEATHSIG)
//	the reader ends or is killed    the parent ends with the same status
//	the reader sends something      the parent kills it, and does not wait if the kernel cannot end it
//	else, or does not end in time
//
// Both processes have the file with the lock of the agent's folder open. So the next agent can
// start only after both have ended.
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
	// MaxReaping bounds the ration reap processes that run at once, and MaxPaths the regions of
	// each.
	MaxReaping = 4
	MaxPaths   = 64
	// maxPath is the kernel's limit on a path. maxLine has room for a request with MaxPaths paths.
	maxPath = 4096
	maxLine = MaxPaths*(maxPath+16) + 1024
	// maxError bounds the text of an error in an answer.
	maxError = 1024
	// reapTimeout is how long a ration reap may run before it is killed.
	reapTimeout = 5 * time.Second
	// endTimeout is how long a reader may take to end before it is killed. A reader takes one
	// second if its clients do not read their answers.
	endTimeout = 10 * time.Second
	// killTimeout is how long the parent waits for a reader that it has killed. Both times are whole seconds.
	killTimeout = 2 * time.Second
)

// Descriptors of the reader.
const (
	channelFD = 3 + iota
	SocketFD  // the agent's socket
	lockFD    // the file with the lock of the agent's folder
	inspectFD // for questions about processes
)

// message is a line from the reader.
type message struct {
	Ready bool     `json:"ready,omitempty"`
	ID    uint64   `json:"id,omitempty"`
	UID   int64    `json:"uid"`
	Paths []string `json:"paths,omitempty"`
	Stop  []Target `json:"stop,omitempty"` // end these processes; the job's region is the only path
	Kill  bool     `json:"kill,omitempty"` // by SIGKILL
}

// answer is a line from the parent.
type answer struct {
	ID      uint64 `json:"id"`
	Error   string `json:"error,omitempty"`
	Stopped []int  `json:"stopped,omitempty"` // PIDs of the processes that got the signal
}

// ErrRefused is returned for a request that the parent refuses.
var ErrRefused = errors.New("refused")

// check validates a request, which an attacker may have sent.
func (m *message) check() error {
	if m.UID < 0 || m.UID >= math.MaxUint32 { // the kernel takes the highest number as "no user"
		return fmt.Errorf("%w: there is no user %d", ErrRefused, m.UID)
	}
	if len(m.Paths) == 0 || len(m.Paths) > MaxPaths {
		return fmt.Errorf("%w: %d regions (1 to %d are allowed)", ErrRefused, len(m.Paths), MaxPaths)
	}
	for _, path := range m.Paths {
		if err := checkPath(path, m.UID == 0); err != nil {
			return err
		}
	}
	return nil
}

// checkPath refuses a path that cannot be a region's. For root it accepts only root's own folder,
// which no other user can write: an attacker must not send root's process elsewhere.
func checkPath(path string, root bool) error {
	switch {
	case len(path) > maxPath:
		return fmt.Errorf("%w: a path of %d bytes", ErrRefused, len(path))
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%w: %q is not a whole path", ErrRefused, path)
	case filepath.Base(path) != job.RegionName:
		return fmt.Errorf("%w: %q does not have the file name of a region", ErrRefused, path)
	case root && filepath.Dir(filepath.Dir(path)) != job.RootFolder:
		return fmt.Errorf("%w: %q is not in root's folder of jobs", ErrRefused, path)
	}
	return nil
}
