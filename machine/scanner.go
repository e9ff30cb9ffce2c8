package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
)

func init() {
	job.NewScanner = func(opts job.ScanOptions) job.Scanner[Machine, Event] { return newScanner(opts) }
}

// scanner scans the machine, once or repeatedly. Its interface is declared in package scan. A scan
// reads only the jobs that have changed. It returns the latest few ended jobs of each user, and
// counts the older ended ones (Machine.Hidden).
//
// The scanner keeps the files of unfinished jobs open, takes no lock and writes nothing. It scans each
// user's jobs in a goroutine of their own. A user whose folder does not respond within two seconds is named
// in the Findings, and is not scanned again until the folder responds. With Options.Ended, a Scan does not
// wait for slow users: it returns the results of the others, and Ended is called when there are more.
type scanner struct {
	opts      job.ScanOptions
	mu        sync.Mutex        // held during a Scan
	users     map[int]*userScan // by UID; ownUser is this user
	outside   map[job.FileID]*userScan
	quotas    map[int]*quota      // by account, for users and outside together
	found     time.Time           // when the users' folders and the kernel's locks were last read
	notes     []Finding           // findings of that read
	lockers   lockers             // the files that processes had locked at that read
	slowLocks int                 // how many reads of the locks, up to that one, were not finished in time
	due       time.Time           // when deferred work is due; zero if there is none
	permits   chan struct{}       // see permit
	unread    map[JobID]time.Time // runs without a record that have disappeared: when that was noticed

	driver *driverPoll
	denied os.FileInfo // the file of m.Denied; nil if there was none

	failed map[int]bool // by number: whether a GPU had failed when the driver was asked last

	removedFile os.FileInfo // the file of removed; nil if there was none
	removed     []Job

	deniedAges time.Time // when the next refusal by the policy stops being a finding; zero if there is none
	base       Machine   // result of the last Scan, without the driver's part
	findings   []Finding // findings about reading the jobs
	last       *Machine  // result of the last Scan

	hintMu sync.Mutex
	hints  map[string]bool // guarded by hintMu: folders in which something has happened

	userPaths job.Paths
	allUsers  func() bool
	policyUp  func() *bool // job.PolicyUp, except in tests
	now       func() time.Time
	timeout   time.Duration // how long a Scan waits for all users together
	early     time.Duration // the same after the first Scan; 0 for timeout
	files     int           // how many files of jobs may be open, for all users together
	active    int           // how many unfinished jobs of one user are scanned
}

const (
	ownUser = -1
	// userTimeout is how long a Scan waits for the other users' jobs. All users are scanned in
	// parallel.
	userTimeout = 2 * time.Second
	// earlyTimeout is how long a Scan waits for slow users if Options.Ended is set. Changes of other users'
	// jobs during that time wait for the next Scan.
	earlyTimeout = 10 * time.Millisecond
	// lockTimeout is how long reading the kernel's list of locks may take.
	lockTimeout = 300 * time.Millisecond
	// slowReads is how many reads of the locks in a row must take longer before that is a finding: one may be slow on
	// a busy machine.
	slowReads = 3
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
	// among them that are read. maxAllActive bounds these jobs for all users together, and is divided
	// equally: a job takes about 16 KiB of memory. Each UID may have minActive.
	maxListed    = 16384
	maxActive    = 2048
	maxAllActive = 8192
	minActive    = 16
	// jobFiles is how many open files one job needs. Half of this process's file limit is for jobs,
	// divided among the users with jobs. The files of further jobs are opened for each Scan.
	jobFiles = 3
	minOpen  = 8
	// maxOutside bounds the regions outside the users' folders that are kept although the kernel
	// does not list a lock on them now.
	maxOutside = 1280
)

func newScanner(opts job.ScanOptions) *scanner {
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	s := &scanner{opts: opts, files: int(min(files.Cur, 1<<20)) / 2, active: maxActive, users: map[int]*userScan{}, outside: map[job.FileID]*userScan{},
		quotas: map[int]*quota{}, failed: map[int]bool{}, hints: map[string]bool{}, permits: make(chan struct{}, maxScans),
		userPaths: job.SystemPaths, allUsers: job.AllUsers, policyUp: job.PolicyUp, now: time.Now, timeout: userTimeout}
	if opts.Ended != nil {
		s.early = earlyTimeout
	}
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

// Folders returns the folders to watch, for each account.
func (s *scanner) Folders() (out []job.ScanFolders) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := map[int]int{}
	for _, u := range s.all() {
		i, known := at[u.account]
		if !known {
			i = len(out)
			at[u.account] = i
			out = append(out, job.ScanFolders{Account: u.account})
		}
		f := &out[i]
		f.Bases, f.Active, f.Opened = append(f.Bases, u.last.bases...), append(f.Active, u.last.active...), append(f.Opened, u.last.opened...)
	}
	return out
}

// emptyMachine returns a machine without content. Its lists are not nil, so that JSON has [] and
// not null.
func emptyMachine() Machine {
	return Machine{Folder: job.Folder(), Devices: []GPU{}, Jobs: []Job{}, Outside: []Outside{}, Findings: []Finding{}}
}

// Scan reads the machine, and compares it with the last Scan.
func (s *scanner) Scan(all bool) (out job.ScanResult[Machine, Event], err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.Only != "" {
		m := emptyMachine()
		m.Jobs = append(m.Jobs, s.readOnly())
		s.addDriver(&m)
		return job.ScanResult[Machine, Event]{Machine: &m, Changed: true}, nil
	}
	began := s.now()
	m, changed, err := s.scan(all)
	if err != nil {
		return job.ScanResult[Machine, Event]{Machine: &m}, err
	}
	var events []Event
	if changed {
		events, s.base = Events(&s.base, &m, began), m
	}
	aged := !s.deniedAges.IsZero() && !began.Before(s.deniedAges)
	if !changed && !aged && !s.driver.isNew() && s.last != nil && slices.Equal(m.Findings, s.findings) {
		out.Machine = s.last
		return out, nil
	}
	s.findings = m.Findings
	next := s.base.Clone()
	next.Findings = slices.Clone(m.Findings)
	s.addDriver(&next)
	if s.allUsers() {
		next.addPriorities(s.opts.Once)
	}
	next.Findings = append(next.Findings, findingsOf(&next)...)
	s.deniedAges = deniedAges(next.Denied, began)
	out.Events = append(withoutElsewhere(events, s.last, &next, began), deviceEvents(s.failed, &next, began)...)
	next.share(s.last)
	s.last = &next
	out.Machine, out.Changed = &next, true
	return out, nil
}

// readOnly reads the only job that the options name.
func (s *scanner) readOnly() Job {
	j, _ := readRegion(s.opts.Only, budgetForAll()) // Job.Err returns the error
	j.setName(s.opts.Name)
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
	users := s.all()
	changed = s.gather(users, now, hints, all) || changed
	var unread []Job
	if s.allUsers() && (changed || len(s.unread) > 0) {
		unread = s.readRecords(now)
		users, changed = s.all(), true
	}
	if s.opts.Once && s.allUsers() {
		// This has a deadline of its own: a user that used up the first one must not hide these
		// regions.
		s.findLocked(jobsOf(users))
		locked := s.all()[len(users):]
		s.gather(locked, now, hints, all)
		users = append(users, locked...)
	}
	for _, u := range users {
		m.addFindingOf(u, s.timeout)
	}
	m.Findings = append(m.Findings, s.notes...)
	if up := s.policyUp(); up != nil && !*up {
		m.addFinding(Finding{Kind: PolicyDown, Device: -1, Text: "the service of this machine's policy does not run: users without a job get none, and nobody who waits for room gets any",
			Remedy: "root starts it: systemctl start ration-policy, or ration policy keep"})
	}
	if changed || s.last == nil {
		m.addJobs(users)
		m.Jobs = append(m.Jobs, unread...)
		m.keepLabels(s.base.Jobs)
		m.settleRations()
	} else {
		m.Jobs, m.Waiting = s.base.Jobs, s.base.Waiting
	}
	m.addFloods()
	m.Denied = s.base.Denied
	if s.readDenied(&m) {
		changed = true
	}
	if s.readRemoved(&m) { // after the jobs: each is in this file before it is removed
		changed = true
	}
	return m, changed, nil
}

// gather scans the jobs of several users in parallel. It reports whether there are new results, from these
// scans or from earlier ones that have finished since.
func (s *scanner) gather(users []*userScan, now time.Time, hints map[string]bool, all bool) (changed bool) {
	most := s.boundsOf(users)
	divideQuotas(s.quotas, now)
	for u, hints := range route(users, hints) {
		if all || len(hints) > 0 || u.isDue(now) {
			u.start(now, hints, most[u.account], all, s.permits)
		}
	}
	wait := s.timeout
	if s.early > 0 && s.last != nil {
		wait = s.early
	}
	deadline, stop := within(wait)
	defer stop()
	for _, u := range users {
		until := deadline
		if s.opts.Once && u.uid == ownUser {
			until = nil // this user's own jobs may take any time
		}
		changed = u.wait(until, s.timeout) || changed
		s.due = earlier(s.due, u.dueAt(s.timeout))
	}
	return changed
}

// addFindingOf adds a finding about a user that did not answer in time, or has too much.
func (m *Machine) addFindingOf(u *userScan, timeout time.Duration) {
	switch {
	case u.unanswering:
		m.addFinding(Finding{Kind: Unanswering, Device: -1,
			Text:   fmt.Sprintf("%s could not be read within %s; its data here may be old or incomplete", u.what, humanfmt.Span(timeout)),
			Remedy: "look at the file system that it is on, and at how much is in it"})
	case u.last.cut:
		m.addFinding(Finding{Kind: Unanswering, Device: -1, Text: u.what + " holds more than is read of it; what is shown is not all",
			Remedy: "have the user remove jobs that have ended (ration rm --stale); ration ps USER/NAME shows one"})
	}
}

// addJobs adds the jobs of users, each file once, and the commands that wait.
func (m *Machine) addJobs(users []*userScan) {
	known := map[job.FileID]bool{}
	for _, u := range users {
		for _, j := range u.last.jobs {
			if !known[j.file] || j.file == (job.FileID{}) {
				known[j.file] = true
				j.byLock = u.locked != nil
				m.Jobs = append(m.Jobs, j)
			}
		}
		m.Waiting = append(m.Waiting, u.last.waiting...)
		m.Hidden += u.last.hidden
	}
	for _, u := range users {
		m.addRecords(u.last.records)
	}
	m.dropRecords(!job.AllUsers())
}

// jobsOf returns the files of the jobs that were found.
func jobsOf(users []*userScan) map[job.FileID]bool {
	known := map[job.FileID]bool{}
	for _, u := range users {
		for i := range u.last.jobs {
			known[u.last.jobs[i].file] = true
		}
	}
	return known
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

// find finds the users that have jobs, and locked regions outside their folders. It reports whether
// jobs disappeared with their user.
func (s *scanner) find(now time.Time, folder string) (gone bool) {
	own := s.users[ownUser]
	if own == nil {
		own = newUserScan(ownUser, "the folder of this user's jobs", nil)
		own.once, own.account, own.ended = s.opts.Once, os.Getuid(), s.opts.Ended
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
	own.setPaths(func() []string { return append([]string{folder}, job.OtherFolders()...) }, fixed)
	if !s.allUsers() || now.Sub(s.found) < findAge {
		return false
	}
	s.found, s.notes = now, nil
	gone = s.findUsers()
	if s.opts.Once {
		return gone // scan searches for locked regions after it has found all others
	}
	return s.findLocked(jobsOf(slices.Collect(maps.Values(s.users)))) || gone
}

// findUsers finds the users that have jobs. It reports whether jobs disappeared with their user.
func (s *scanner) findUsers() (gone bool) {
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
			u.once, u.reap, u.account, u.ended = s.opts.Once, s.opts.Reap, proc.Account(f.UID), s.opts.Ended
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
	return gone
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
