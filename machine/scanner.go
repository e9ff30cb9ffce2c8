package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/scan"
)

func init() {
	scan.New = func(opts scan.Options) scan.Scanner[Machine, Event] { return newScanner(opts) }
}

// scanner scans the machine, once or repeatedly. Package scan declares its interface. A scan reads
// only the jobs that have changed. It returns the latest few ended jobs of each user, and counts
// the others (Machine.Hidden).
//
// The scanner keeps the files of unfinished jobs open, takes no lock and writes nothing. It scans
// each user's jobs in a goroutine of their own. A user whose folder does not respond delays one
// Scan by two seconds, is named in the Findings, and is not scanned again until the folder
// responds.
type scanner struct {
	opts    scan.Options
	mu      sync.Mutex        // held during a Scan
	users   map[int]*userScan // by UID; ownUser is this user
	outside map[job.FileID]*userScan
	quotas  map[int]*quota       // by account, for users and outside together
	found   time.Time            // when the users' folders and the kernel's locks were last read
	notes   []Finding            // findings of that read
	lockers map[int][]job.FileID // by PID: the files that a process had locked at that read
	due     time.Time            // when deferred work is due; zero if there is none
	permits chan struct{}        // see permit

	driver   *driverPoll
	base     Machine   // result of the last Scan, without the driver's part
	findings []Finding // findings about reading the jobs
	last     *Machine  // result of the last Scan

	hintMu sync.Mutex
	hints  map[string]bool // guarded by hintMu: folders in which something has happened

	userPaths job.Paths
	allUsers  func() bool
	now       func() time.Time
	timeout   time.Duration // how long a Scan waits for all users together
	files     int           // how many files of jobs may be open, for all users together
	active    int           // how many unfinished jobs of one user are scanned
}

const (
	ownUser = -1
	// userTimeout is how long a Scan waits for the other users' jobs. All users are scanned in
	// parallel.
	userTimeout = 2 * time.Second
	// lockTimeout is how long reading the kernel's list of locks may take.
	lockTimeout = 300 * time.Millisecond
	// findAge is how often the scanner searches for new users, and for locked regions outside their
	// folders.
	findAge = 5 * time.Second
	// listAge is how often a folder is listed even if its modification time is unchanged.
	listAge = time.Minute
	// Each ended job is checked once in endedRounds full Scans, because a new job may start in its
	// folder without a hint.
	endedRounds = 600
	// keptEnded is how many ended jobs of each user are returned.
	keptEnded = job.Kept
	// maxListed bounds the folders of one user that are tracked, and maxActive the unfinished jobs
	// among them that are read.
	maxListed = 16384
	maxActive = 2048
	// jobFiles is how many open files one job needs. Half of this process's file limit is for jobs,
	// divided equally among the users with jobs. The files of further jobs are opened for each
	// Scan.
	jobFiles = 3
	minOpen  = 8
	// maxOutside bounds the regions outside the users' folders that are kept although the kernel
	// does not list a lock on them now.
	maxOutside = 1280
)

func newScanner(opts scan.Options) *scanner {
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	s := &scanner{opts: opts, files: int(min(files.Cur, 1<<20)) / 2, active: maxActive, users: map[int]*userScan{}, outside: map[job.FileID]*userScan{},
		quotas: map[int]*quota{}, hints: map[string]bool{}, permits: make(chan struct{}, maxScans),
		userPaths: job.SystemPaths, allUsers: job.AllUsers, now: time.Now, timeout: userTimeout}
	if opts.Once {
		s.active = math.MaxInt
	}
	if opts.Background {
		s.driver = pollDriver(opts.Wake)
	}
	return s
}

// Hint tells the scanner that something has happened in a folder.
func (s *scanner) Hint(folder string) {
	s.hintMu.Lock()
	defer s.hintMu.Unlock()
	s.hints[folder] = true
}

// Deferred returns when the next Scan is due even if nothing happens, or the zero time.
func (s *scanner) Deferred() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

// Close closes all files.
func (s *scanner) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.all() {
		u.end()
	}
	clear(s.users)
	clear(s.outside)
	s.driver.close()
}

// all returns the users in order, followed by the regions outside their folders.
func (s *scanner) all() (out []*userScan) {
	for _, u := range s.users {
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b *userScan) int { return cmp.Compare(a.uid, b.uid) })
	for _, u := range s.outside {
		out = append(out, u)
	}
	return out
}

// Folders returns the folders to watch.
func (s *scanner) Folders() (bases, active, opened []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.all() {
		bases, active, opened = append(bases, u.last.bases...), append(active, u.last.active...), append(opened, u.last.opened...)
	}
	return bases, active, opened
}

// emptyMachine returns a machine without content. Its lists are not nil, so that JSON has [] and
// not null.
func emptyMachine() Machine {
	return Machine{Folder: job.Folder(), Devices: []GPU{}, Jobs: []Job{}, Outside: []Outside{}, Findings: []Finding{}}
}

// Scan reads the machine, and compares it with the last Scan.
func (s *scanner) Scan(all bool) (out scan.Result[Machine, Event], err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.Only != "" {
		m := emptyMachine()
		m.Jobs = append(m.Jobs, s.readOnly())
		s.addDriver(&m)
		return scan.Result[Machine, Event]{Machine: &m, Changed: true}, nil
	}
	began := s.now()
	m, changed, err := s.scan(all)
	if err != nil {
		return scan.Result[Machine, Event]{Machine: &m}, err
	}
	if changed {
		out.Events = Events(&s.base, &m, began)
		s.base = m
	}
	if !changed && !s.driver.isNew() && s.last != nil && slices.Equal(m.Findings, s.findings) {
		out.Machine = s.last
		return out, nil
	}
	s.findings = m.Findings
	next := s.base.Clone()
	next.Findings = slices.Clone(m.Findings)
	s.addDriver(&next)
	next.Findings = append(next.Findings, findingsOf(&next)...)
	next.share(s.last)
	s.last = &next
	out.Machine, out.Changed = &next, true
	return out, nil
}

// readOnly reads the only job that the options name.
func (s *scanner) readOnly() Job {
	j, _ := readRegion(s.opts.Only, budgetForAll()) // Job.Err returns the error
	j.Name = s.opts.Name
	j.reap(s.opts.Reap)
	return j
}

// scan reads all jobs, or those with a hint. changed is false if nothing differs from the last
// scan.
func (s *scanner) scan(all bool) (m Machine, changed bool, err error) {
	m = emptyMachine()
	if reason, err := job.UntrustedReason(m.Folder); err == nil && reason != "" || err != nil && !errors.Is(err, fs.ErrNotExist) {
		if _, err := job.List(); err != nil {
			return m, true, err
		}
	}
	now := s.now()
	changed = s.find(now, m.Folder)
	hints := s.takeHints()
	s.due = time.Time{}
	known := map[job.FileID]bool{}
	users := s.all()
	if changed = s.gather(users, &m, known, now, hints, all) || changed; s.opts.Once && s.allUsers() {
		// This has a deadline of its own: a user that used up the first one must not hide these
		// regions.
		s.findLocked(known)
		s.gather(s.all()[len(users):], &m, known, now, hints, all)
	}
	m.Findings = append(m.Findings, s.notes...)
	m.addFloods()
	return m, changed, nil
}

// gather scans the jobs of several users in parallel, and adds those that are not known yet.
func (s *scanner) gather(users []*userScan, m *Machine, known map[job.FileID]bool, now time.Time, hints map[string]bool, all bool) (changed bool) {
	deadline, stop := within(s.timeout)
	defer stop()
	most := bounds{s.active, s.openOfEach(users)}
	for _, u := range users {
		u.start(now, hints, most, all, s.permits)
	}
	for _, u := range users {
		wait := deadline
		if s.opts.Once && u.uid == ownUser {
			wait = nil // this user's own jobs may take any time
		}
		answered, news := u.wait(wait)
		changed = changed || news
		if answered {
			s.due = earlier(s.due, u.last.due)
		}
		for _, j := range u.last.jobs {
			if !known[j.file] || j.file == (job.FileID{}) {
				known[j.file] = true
				m.Jobs = append(m.Jobs, j)
			}
		}
		m.Hidden += u.last.hidden
		if !answered {
			m.addFinding(Finding{Kind: Unanswering, Device: -1,
				Text:   fmt.Sprintf("%s could not be read within %s; its data here may be old or incomplete", u.what, humanfmt.Span(s.timeout)),
				Remedy: "look at the file system that it is on, and at how much is in it"})
		} else if u.last.cut {
			m.addFinding(Finding{Kind: Unanswering, Device: -1, Text: u.what + " holds more than is read of it; what is shown is not all",
				Remedy: "have the user remove jobs that have ended (ration rm --stale); ration ps USER/NAME shows one"})
		}
	}
	return changed
}

// within returns a channel that is closed after d, unless stop is called earlier.
func within(d time.Duration) (end <-chan struct{}, stop func()) {
	out := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(out) })
	return out, func() { timer.Stop() }
}

func (s *scanner) takeHints() map[string]bool {
	s.hintMu.Lock()
	defer s.hintMu.Unlock()
	hints := s.hints
	s.hints = map[string]bool{}
	return hints
}

// openOfEach returns how many jobs of each user may keep their files open.
func (s *scanner) openOfEach(all []*userScan) int {
	users := 1
	for _, u := range all {
		if len(u.last.active) > 0 {
			users++
		}
	}
	return max(minOpen, s.files/jobFiles/users)
}

// find finds the users that have jobs, and locked regions outside their folders. It reports whether
// jobs disappeared with their user.
func (s *scanner) find(now time.Time, folder string) (gone bool) {
	own := s.users[ownUser]
	if own == nil {
		own = newUserScan(ownUser, "the folder of this user's jobs", nil)
		own.once = s.opts.Once
		own.reap = s.opts.Reap
		s.users[ownUser] = own
	}
	var fixed []string
	others := []string{os.Getenv(job.EnvRegion), filepath.Join(job.WellKnown, job.RegionName)}
	if folder != job.RootFolder { // jobs of a policy; root finds them among all users' jobs
		others = append(others, job.OfUserPath(os.Getuid()))
		for _, run := range job.RunsOf(os.Getuid()) {
			others = append(others, run.Path)
		}
	}
	for _, path := range others {
		if path != "" {
			fixed = append(fixed, path)
		}
	}
	own.setPaths(func() []string { return []string{folder} }, fixed)
	if !s.allUsers() || now.Sub(s.found) < findAge {
		return false
	}
	s.found, s.notes = now, nil
	folders, all := s.userPaths.Folders()
	if !all {
		s.notes = append(s.notes, Finding{Kind: Unanswering, Device: -1, Text: s.userPaths.Temp + " holds more names than are read of it; jobs of users without a process may be missing",
			Remedy: "look for the user who makes so many, and remove them"})
	}
	there := map[int]bool{ownUser: true}
	for _, f := range folders {
		there[f.UID] = true
		if s.users[f.UID] == nil {
			u := newUserScan(f.UID, fmt.Sprintf("the folder of jobs of user %d", f.UID), s.quotaOf(proc.Account(f.UID)))
			u.once, u.reap = s.opts.Once, s.opts.Reap
			s.users[f.UID] = u
		}
		s.users[f.UID].setPaths(f.Paths, nil)
	}
	for uid, u := range s.users {
		// Keep a user whose scan does not end, so that no second goroutine scans it.
		if !there[uid] && !u.isScanning() {
			gone = gone || len(u.last.jobs) > 0
			u.end()
			delete(s.users, uid)
			delete(s.quotas, uid)
		}
	}
	if s.opts.Once {
		return gone // scan searches for locked regions after it has found all others
	}
	known := map[job.FileID]bool{}
	for _, u := range s.users {
		for _, j := range u.last.jobs {
			known[j.file] = true
		}
	}
	return s.findLocked(known) || gone
}

// quotaOf returns the quota of an account, which is a user with all UIDs delegated to that user.
func (s *scanner) quotaOf(account int) *quota {
	if s.quotas[account] == nil {
		s.quotas[account] = &quota{}
		if s.opts.Once {
			s.quotas[account].left = budgetForAll().Left
		}
	}
	return s.quotas[account]
}

// findLocked finds regions by their locks, and reports whether jobs have disappeared.
func (s *scanner) findLocked(known map[job.FileID]bool) (gone bool) {
	deadline, stop := within(lockTimeout)
	defer stop()
	files, all, err := job.LockedFiles(deadline)
	if err != nil {
		return false
	}
	if !all {
		s.notes = append(s.notes, Finding{Kind: Unanswering, Device: -1,
			Text:   "the kernel's list of locks is too long to be read; jobs outside the folders of jobs may be missing",
			Remedy: "look in /proc/locks for the process that has so many"})
	}
	locked := map[job.FileID]bool{}
	s.lockers = map[int][]job.FileID{}
	for _, f := range files {
		locked[f.ID] = true
		for _, pid := range f.PIDs {
			s.lockers[pid] = append(s.lockers[pid], f.ID)
		}
		if !known[f.ID] && s.outside[f.ID] == nil {
			account := -1
			if owner, _, _, err := proc.Owner(f.PIDs[0]); err == nil {
				account = proc.Account(owner)
			}
			u := newUserScan(0, "a region that a process has locked", s.quotaOf(account))
			u.locked, u.once = &f, s.opts.Once
			s.outside[f.ID] = u
		}
	}
	return s.forgetOutside(known, locked, all)
}

// forgetOutside drops regions that are known by another path, or are not locked any more. complete
// says whether locked has all locked files. It reports whether jobs have disappeared.
func (s *scanner) forgetOutside(known, locked map[job.FileID]bool, complete bool) (gone bool) {
	for id, u := range s.outside {
		ended := !locked[id] && (complete || !u.isRunning() || len(s.outside) > maxOutside)
		if (ended || known[id]) && !u.isScanning() {
			gone = gone || len(u.last.jobs) > 0
			u.end()
			delete(s.outside, id)
		}
	}
	return gone
}
