// Package scan gives the agent and the commands the scanner of package machine, without making it a part
// of machine's public API: when to read which job is of no use outside this module.
//
// Package machine imports this package and sets New. So this package cannot name machine's types, and has
// type parameters in their place. Use the scanner through package node, which has the types.
package scan

import (
	"time"

	"ration/internal/gpu"
)

// Options say what a scanner reads.
type Options struct {
	// Once is for a scanner that is used once. It reads all jobs that have ended, and keeps no file open.
	Once bool
	// Only is the path of a region. The scanner reads this job alone, and Name is the job's name.
	Only, Name string
	// Driver is asked in each Scan; nil for no driver.
	Driver *gpu.Session
	// Background asks the driver every few seconds in a goroutine, which calls Wake after each answer.
	Background bool
	Wake       func()
	// Reap returns what dead processes hold to the job of a region, and says of how many. It is called for
	// regions that no other user can write; nil leaves all regions as they are. Only for Once and Only.
	Reap func(path string) (n int, err error)
}

// Result is what a scan found. M is machine.Machine, and E is machine.Event.
type Result[M, E any] struct {
	Machine *M   // nothing changes it later
	Events  []E  // what has happened since the scan before, the earliest first
	Changed bool // Machine differs from the one of the scan before
}

// Scanner reads the machine again and again. A Scan reads only the jobs that have changed.
type Scanner[M, E any] interface {
	// Scan looks at all jobs, or, where all is false, only at those that have a hint or were deferred.
	Scan(all bool) (Result[M, E], error)
	// Hint says that something has happened in a folder: a job's own, or a folder of jobs. It does not
	// wait for a Scan in progress.
	Hint(folder string)
	// Deferred returns when the next Scan is due although nothing happens, or the zero time: the last Scan
	// deferred a job that it had read a moment before, or a process is about to end.
	Deferred() time.Time
	// Folders returns the folders worth watching: those in which jobs are made and removed, those of jobs
	// that have not ended, and those of jobs whose files are opened in each Scan.
	Folders() (bases, active, opened []string)
	// Close closes all files. Those of a user whose files do not answer are closed when they do.
	Close()
}

// New is a func(Options) Scanner[machine.Machine, machine.Event].
var New any
