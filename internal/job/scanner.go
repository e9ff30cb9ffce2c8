package job

import (
	"time"

	"ration/internal/gpu"
)

// ScanOptions are the settings of a scanner.
type ScanOptions struct {
	// Once is for a scanner that scans once. It reads all ended jobs, and keeps no file open.
	Once bool
	// Only is the path of a region. The scanner reads only this job, whose name is Name.
	Only, Name string
	// Driver is queried in each Scan; nil for no driver.
	Driver *gpu.Session
	// Background queries the driver every few seconds in a goroutine, which calls Wake after each
	// answer.
	Background bool
	Wake       func()
	// Ended is called when the scan of a slow user has finished after Scan returned: the next Scan returns
	// the result. It must not call the scanner. If it is nil, Scan waits for all users.
	Ended func()
	// Reap returns the memory of dead processes to the job of a region, and returns how many
	// processes that were. It is called for regions that no other user can write. With nil, no
	// region is changed. It is used only with Once or Only.
	Reap func(path string) (n int, err error)
}

// ScanResult is the result of a scan. M is machine.Machine, and E is machine.Event.
type ScanResult[M, E any] struct {
	Machine *M   // never modified later
	Events  []E  // events since the last scan, oldest first
	Changed bool // Machine differs from that of the last scan
}

// ScanFolders are the folders to watch of one account (proc.Account).
type ScanFolders struct {
	Account int
	Bases   []string // jobs are made and removed in these
	Active  []string // of jobs that have not ended
	Opened  []string // of jobs whose files are opened in each Scan
}

// Scanner scans the machine repeatedly. Package machine implements it and sets NewScanner, so that the
// scheduling of reads is not part of machine's public API. This package cannot import machine: hence the
// type parameters. Package node fills them in.
//
// Each Scan reads only the jobs that have changed.
type Scanner[M, E any] interface {
	// Scan checks all jobs or, if all is false, only jobs with a hint and deferred jobs.
	Scan(all bool) (ScanResult[M, E], error)
	// Hint says that something has happened in a job's folder or in a folder of jobs. It does not
	// wait for a Scan in progress.
	Hint(folder string)
	// Deferred returns the time at which the next Scan is due even if nothing happens, or the zero time. A Scan
	// defers a job if it has just read it, or if one of its processes is about to end.
	Deferred() time.Time
	// Folders returns the folders to watch, for each account.
	Folders() []ScanFolders
	// Close closes all files. If a user's files do not respond, it closes them as soon as they do.
	Close()
}

// NewScanner is a func(ScanOptions) Scanner[machine.Machine, machine.Event].
var NewScanner any
