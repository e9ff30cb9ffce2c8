package machine

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/safepath"
)

// userScan scans the jobs of one user, in a new goroutine each time. A scan may hang forever; then
// no other scan of that user starts.
type userScan struct {
	uid     int
	account int    // of the UID, by which bounds count
	what    string // the user's name in findings
	ended   func() // called after a scan for which a Scan did not wait; may be nil
	quota   *quota
	once    bool
	reap    func(path string) (int, error) // nil to change nothing

	paths  func() []string // the folders of jobs; may query a directory service
	fixed  []string        // paths of regions outside those folders
	locked *job.LockedFile // instead of both: a region that was found by its lock

	mu      sync.Mutex
	running bool            // guarded by mu: a scan is in progress
	began   time.Time       // guarded by mu: when it started
	late    bool            // guarded by mu: a Scan returned before its end
	over    bool            // guarded by mu: no result is needed any more
	done    chan struct{}   // closed when the scan has ended
	permit  *permit         // permit of the scan in progress
	partial []Job           // guarded by mu: jobs read so far by the first scan
	next    userResult      // result of the scan that finished last
	untaken bool            // guarded by mu: next is not in last yet
	last    userResult      // the result that the next scan starts with
	news    bool            // last differs from the result that wait returned
	hints   map[string]bool // hints that arrived during a scan

	unanswering bool // the scan in progress takes too long

	state userState // only for the scanning goroutine
}

// userResult is the result of a scan. It is never modified later.
type userResult struct {
	jobs    []Job
	waiting []Waiting
	records []Job // of commands whose regions are elsewhere: runs of a policy
	hidden  int
	cut     bool // the user has more jobs than are read
	changed bool
	due     time.Time // when deferred work is due; zero if there is none
	read    time.Time // when the last scan that read the folders began

	bases, active, opened []string // folders of jobs, of unfinished jobs, and of jobs without open files
}

// userState is kept between the scans of one user.
type userState struct {
	uid     int
	most    bounds
	quota   *quota
	lists   map[string]*listing // by path
	jobs    map[string]*tracked // by path of the region
	active  []*tracked          // unfinished jobs
	waiting []Waiting           // commands in the queues
	ended   []*tracked
	turn    int       // index into ended
	rested  time.Time // earliest time of the next full scan
	// Jobs with hints, and with processes about to end, that are left for a later scan.
	deferred    map[string]bool
	deferredDue time.Time // when the first of them is due
	// Deaths are also noticed before rested (scanForDeaths).
	dying    map[string]bool      // those of deferred in which a process is about to end
	dyingDue time.Time            // earliest time to check dying
	cost     func() time.Duration // threadTime
	scanned  bool                 // there has been a scan
	buf      []byte               // nil if there are no jobs
}

// listing is the content of a folder of jobs.
type listing struct {
	changed unix.Timespec
	at      time.Time
	names   map[string]bool
	cut     bool
}

func newUserScan(uid int, what string, q *quota) *userScan {
	return &userScan{uid: uid, account: uid, what: what, quota: q, paths: func() []string { return nil },
		state: userState{cost: threadTime, uid: uid, quota: q, lists: map[string]*listing{}, jobs: map[string]*tracked{}}}
}

// setPaths sets the folders and regions, unless a scan is using them.
func (u *userScan) setPaths(paths func() []string, fixed []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.running {
		u.paths, u.fixed = paths, fixed
	}
}

// maxHints bounds the hints that are kept for a user whose scan does not end.
const maxHints = 4096

// bounds are how many unfinished jobs of a user are scanned, and how many of these may have open
// files.
type bounds struct{ active, open int }

// start starts a scan of all jobs, or of those with a hint, unless a scan is in progress.
func (u *userScan) start(now time.Time, hints map[string]bool, most bounds, all bool, permits chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.hints)+len(hints) <= maxHints {
		hints = maps.Clone(hints)
		maps.Copy(hints, u.hints)
	}
	if u.running {
		u.hints = hints
		return
	}
	u.hints = nil
	u.take() // of a scan that finished after its deadline
	u.running, u.began, u.late, u.done = true, time.Now(), false, make(chan struct{})
	done := u.done
	p := &permit{all: permits, over: make(chan struct{})}
	u.permit = p
	if u.refuseRead() {
		return
	}
	go func() {
		if u.quota != nil { // read one region of an account at a time, because each copy is large
			u.quota.turn.Lock()
			defer u.quota.turn.Unlock()
		}
		p.take()
		defer p.leave()
		runtime.LockOSThread() // for threadTime
		defer runtime.UnlockOSThread()
		var next userResult
		if u.once {
			next = u.readOnce()
		} else {
			next = u.scan(now, hints, most, all)
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.running, u.next, u.untaken = false, next, true
		u.countEnd()
		if u.over {
			u.state.close()
		}
		close(done)
		if u.late && u.ended != nil {
			u.ended()
		}
	}()
}

// take publishes the result of the scan that finished last. The caller holds u.mu.
func (u *userScan) take() {
	if u.untaken {
		u.last, u.untaken, u.partial = u.next, false, nil
		u.news = u.news || u.last.changed
	}
}

// wait waits for the scan in progress, if there is one, until the deadline. It does not wait for a scan that
// has taken longer than timeout. It reports whether last has changed since the previous wait.
func (u *userScan) wait(deadline <-chan struct{}, timeout time.Duration) (changed bool) {
	u.mu.Lock()
	running, done, left := u.running && !u.began.IsZero(), u.done, time.Until(u.began.Add(timeout))
	u.mu.Unlock()
	if running && (deadline == nil || left > 0) {
		select {
		case <-done:
		case <-deadline:
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.take()
	u.late = u.running
	u.unanswering = u.running && time.Since(u.began) >= timeout
	u.countLate()
	if u.unanswering {
		u.permit.leave() // so that another scan can start
		if len(u.partial) > 0 {
			u.last.jobs, u.news = slices.Clone(u.partial), true
		}
	}
	changed, u.news = u.news, false
	return changed
}

// dueAt returns when the user needs a Scan although nothing happens, or the zero time: the deferred work of
// the last scan is due, or the scan in progress has missed its deadline.
func (u *userScan) dueAt(timeout time.Duration) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !u.running:
		return u.last.due
	case u.unanswering:
		return time.Time{}
	}
	return u.began.Add(timeout)
}

// isDue reports whether the user must be scanned although nothing happens.
func (u *userScan) isDue(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.done == nil || len(u.hints) > 0 || u.untaken && u.next.isDue(now) || !u.untaken && u.last.isDue(now)
}

// isRunning reports whether a process of the user held a lock at the last scan.
func (u *userScan) isRunning() bool {
	return slices.ContainsFunc(u.last.jobs, func(j Job) bool { return j.State == Running })
}

func (u *userScan) isScanning() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

// end closes all files, now or after the scan in progress.
func (u *userScan) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	if !u.running {
		u.state.close()
	}
}

// isOver reports whether no result is needed any more.
func (u *userScan) isOver() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.over
}

func (s *userState) close() {
	for _, t := range s.jobs {
		t.close()
		t.drop()
	}
}

// scan checks all jobs of the user, or those with a hint.
func (u *userScan) scan(now time.Time, hints map[string]bool, most bounds, all bool) userResult {
	s := &u.state
	s.most = most
	s.waitForAccount()
	if now.Before(s.rested) {
		return u.scanForDeaths(now, hints)
	}
	hints = s.takeDeferred(hints)
	clear(s.dying)
	read, began := time.Now(), s.cost()
	changed := !s.scanned
	s.scanned = true
	paths := u.paths()
	changed = s.readQueues(paths) || changed // before the jobs: a command makes its job before it leaves the queue
	switch {
	case u.locked != nil:
		changed = u.openLocked() || changed
	default:
		for _, folder := range paths {
			changed = s.list(folder, now, hints[folder]) || changed
		}
		for _, path := range u.fixed {
			if _, err := os.Lstat(path); err == nil && s.jobs[path] == nil {
				s.jobs[path] = track("", path, u.uid, s.quota)
				changed = true
			}
		}
	}
	if changed {
		s.divide()
	}
	if s.buf == nil && len(s.jobs) > 0 { // most users have no jobs
		s.buf = make([]byte, region.PulseSize)
	}
	p := budgetForAll()
	check := func(t *tracked, why reason) {
		news, there := t.look(p, s.buf, why)
		if !there {
			s.forget(t)
		} else if t.ended {
			t.close() // there may be thousands
		}
		changed = changed || news || !there
	}
	for i, t := range s.scannedJobs() {
		why := clock
		if hints[t.folder] {
			why = hint
		} else if !all && !t.wants(now) {
			continue
		}
		if check(t, why); i >= most.open {
			t.close()
		}
	}
	if all {
		s.renew(now, func(t *tracked) {
			open := t.dir >= 0
			if check(t, age); !open {
				t.close()
			}
		})
	}
	for _, t := range s.active[len(s.scannedJobs()):] {
		t.close()
		t.drop()
	}
	for range len(s.ended)/endedRounds + 1 {
		if all && len(s.ended) > 0 {
			s.turn = (s.turn + 1) % len(s.ended)
			check(s.ended[s.turn], clock)
		}
	}
	for folder := range hints {
		t := s.jobs[filepath.Join(folder, job.RegionName)]
		if t != nil && t.ended {
			check(t, hint)
		}
		if t != nil && t.late {
			s.deferJob(folder, later(t.due, now.Add(soonGap)))
		}
	}
	for _, t := range s.active {
		if t.soon(now) {
			s.deferJob(t.folder, now.Add(soonGap))
		}
	}
	out := u.last.again(time.Time{})
	if changed {
		s.divide()
		out = s.collect(p, paths)
	}
	s.rest(began)
	out.read = read
	if out.due = s.deferredDue; !out.due.IsZero() {
		out.due = later(out.due, s.rested)
	}
	return out
}

// list reads a folder again if it has changed, and reports whether it has.
func (s *userState) list(folder string, now time.Time, hinted bool) (changed bool) {
	l := s.lists[folder]
	at, err := job.Changed(folder)
	// A modification time is only as precise as the kernel's clock: a change right after the
	// listing may have the same time.
	fresh := l != nil && l.at.Sub(time.Unix(at.Unix())) > time.Second
	if l != nil && err == nil && l.changed == at && fresh && now.Sub(l.at) < listAge && !hinted {
		return false
	}
	listed := time.Now()
	most := maxListed // for all folders together
	for other, l := range s.lists {
		if other != folder {
			most -= len(l.names)
		}
	}
	names, at, all, err := job.Names(folder, most)
	if err != nil {
		names = nil
	}
	next := &listing{at, listed, make(map[string]bool, len(names)), !all}
	for _, name := range names {
		next.names[name] = true
		path := filepath.Join(folder, name, job.RegionName)
		if s.jobs[path] == nil {
			s.jobs[path] = track(name, path, s.uid, s.quota)
			changed = true
		}
	}
	if l != nil {
		for name := range l.names {
			path := filepath.Join(folder, name, job.RegionName)
			if t := s.jobs[path]; !next.names[name] && t != nil {
				s.forget(t)
				changed = true
			}
		}
	}
	s.lists[folder] = next
	return changed
}

// forget stops tracking a job.
func (s *userState) forget(t *tracked) {
	t.close()
	t.drop()
	delete(s.jobs, t.path)
}

// scannedJobs returns the unfinished jobs that are scanned.
func (s *userState) scannedJobs() []*tracked { return s.active[:min(len(s.active), s.most.active)] }

// isCut reports whether the user has more jobs than are scanned.
func (s *userState) isCut() bool {
	cut := len(s.active) > s.most.active
	for _, l := range s.lists {
		cut = cut || l.cut
	}
	return cut
}

// divide sorts the jobs into ended and unfinished ones.
func (s *userState) divide() {
	s.active, s.ended = s.active[:0], s.ended[:0]
	for _, t := range s.jobs {
		if t.ended {
			s.ended = append(s.ended, t)
		} else {
			s.active = append(s.active, t)
		}
	}
	byPath := func(a, b *tracked) int { return cmp.Compare(a.path, b.path) }
	slices.SortFunc(s.active, byPath)
	if len(s.active) > s.most.active { // jobs that are shown already stay
		slices.SortStableFunc(s.active, func(a, b *tracked) int {
			switch {
			case a.known == b.known:
				return 0
			case a.known:
				return -1
			}
			return 1
		})
		slices.SortFunc(s.active[:s.most.active], byPath)
	}
	slices.SortFunc(s.ended, func(a, b *tracked) int {
		return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.path, b.path))
	})
}

// collect returns the jobs. It reads the latest ended ones, and discards earlier reads of the
// others.
func (s *userState) collect(p safepath.Budget, paths []string) userResult {
	out := userResult{changed: true, waiting: s.waiting, records: s.records(), cut: s.isCut(), bases: slices.Clone(paths)}
	for i, t := range s.ended {
		if i >= keptEnded {
			t.drop()
			out.hidden++
			continue
		}
		if !t.known {
			if _, there := t.open(); there {
				t.readAll(p)
			}
		}
	}
	for i, t := range slices.Concat(s.scannedJobs(), s.ended[:min(len(s.ended), keptEnded)]) {
		if t.ended || t.name != "" && i >= s.most.open {
			out.opened = append(out.opened, t.folder)
		} else if t.name != "" {
			out.active = append(out.active, t.folder)
		}
		if t.shown && t.known {
			out.jobs = append(out.jobs, t.job)
		}
	}
	return out
}

// openLocked opens the file of a region that was found by its lock.
func (u *userScan) openLocked() (changed bool) {
	if len(u.state.jobs) > 0 {
		return false
	}
	dir, name, path, err := u.locked.OpenFolder()
	if err != nil {
		if j, shown := u.readLocked(); shown { // its file was removed: show the job once more, and do not check it again
			u.state.jobs[path] = &tracked{path: j.Path, folder: filepath.Dir(j.Path), dir: -1, job: j, known: true, shown: true, fixed: true}
		}
		return true
	}
	folder, owner := u.placeOf(dir, name, path)
	t := track(folder, path, owner, u.quota)
	t.region, t.dir, t.vitals = name, dir, job.OpenVitals(dir, name)
	u.state.jobs[path] = t
	return true
}
