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
	"ration/internal/patience"
	"ration/internal/region"
)

// userReader looks at the jobs of one user again and again, in a goroutine of its own for each
// look: it may never end, and then there is no other.
type userReader struct {
	uid  int
	what string // in findings
	kept *allowance

	paths  func() []string // the folders of jobs; may ask a directory service
	fixed  []string        // regions outside them
	locked *job.LockedFile // instead of both: a region that was found by its lock

	mu      sync.Mutex
	looking bool // under mu
	over    bool // under mu: nobody waits for it any more
	done    chan struct{}
	at      *lookPlace      // of the look that is under way
	next    userLook        // of the look that has ended
	untaken bool            // under mu: next is not last yet
	last    userLook        // that the next look begins with
	news    bool            // last differs from what was handed out
	hints   map[string]bool // that came while a look was under way

	state userState // of the goroutine
}

// userLook is what a look has found. It is not changed any more.
type userLook struct {
	jobs    []Job
	hidden  int
	cut     bool
	changed bool
	putOff  time.Time // when another is worth while; zero for when something happens

	bases, active, opened []string // folders: of jobs, and of each job; opened are those of which nothing is kept open
}

// again is the same look, once more.
func (l userLook) again(putOff time.Time) userLook {
	l.changed, l.putOff = false, putOff
	return l
}

// userState is what the looks of one user know of each other.
type userState struct {
	uid     int
	most    bounds
	kept    *allowance
	lists   map[string]*listing // by path
	jobs    map[string]*watched // by path of the region
	active  []*watched          // those that have not ended
	ended   []*watched
	turn    int // in ended
	due     time.Time
	late    map[string]bool // hints that were put off
	lateDue time.Time       // when the first of them is due
	// While the user's jobs rest, what ends is noticed all the same (lookForEnds).
	ends    map[string]bool      // of late: folders in which a process is about to end
	endsDue time.Time            // not before
	cost    func() time.Duration // threadTime
	first   bool                 // there was a look
	buf     []byte               // nil while there are no jobs
}

// listing is a folder of jobs as it was listed.
type listing struct {
	changed unix.Timespec
	at      time.Time
	names   map[string]bool
	cut     bool
}

func newUserReader(uid int, what string, user *allowance) *userReader {
	return &userReader{uid: uid, what: what, kept: user, paths: func() []string { return nil },
		state: userState{cost: threadTime, uid: uid, kept: user, lists: map[string]*listing{}, jobs: map[string]*watched{}}}
}

// setPaths sets the folders and regions, unless a look is under way, which uses them.
func (u *userReader) setPaths(paths func() []string, fixed []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.looking {
		u.paths, u.fixed = paths, fixed
	}
}

// maxHints bounds how many hints are kept for a user whose look does not end.
const maxHints = 4096

// bounds say how many jobs of a user that have not ended are looked at, and of how many of these
// descriptors are kept.
type bounds struct{ active, open int }

// start begins a look at every job, or at those that were hinted at, unless one is under way. Each takes
// one of the places: who has a thousand regions locked would otherwise have a thousand threads.
func (u *userReader) start(now time.Time, hints map[string]bool, most bounds, every bool, places chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.hints)+len(hints) <= maxHints {
		hints = maps.Clone(hints)
		maps.Copy(hints, u.hints)
	}
	if u.looking {
		u.hints = hints
		return
	}
	u.hints = nil
	u.take() // of one that ended when nobody waited for it: the look that begins knows it
	u.looking, u.done = true, make(chan struct{})
	done := u.done
	at := &lookPlace{all: places, over: make(chan struct{})}
	u.at = at
	go func() {
		if u.locked != nil && u.kept != nil { // one of a user's at a time: each is copied, and that is much
			u.kept.turn.Lock()
			defer u.kept.turn.Unlock()
		}
		at.take()
		defer at.leave()
		runtime.LockOSThread() // for threadTime
		defer runtime.UnlockOSThread()
		next := u.look(now, hints, most, every)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.looking, u.next, u.untaken = false, next, true
		if u.over {
			u.state.close()
		}
		close(done)
	}()
}

// take makes what the look has found that has ended the last. The lock is held.
func (u *userReader) take() {
	if u.untaken {
		u.last, u.untaken = u.next, false
		u.news = u.news || u.last.changed
	}
}

// wait waits for the look until the deadline. It reports whether it has ended, and whether last
// differs from what it was after the wait before.
func (u *userReader) wait(deadline <-chan struct{}) (answered, changed bool) {
	select {
	case <-u.done:
		answered = true
	case <-deadline:
		select {
		case <-u.done:
			answered = true
		default:
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if answered {
		u.take()
	} else {
		u.at.leave() // it is for another
	}
	changed, u.news = u.news, false
	return answered, changed
}

// isRunning reports whether a process of a job had a lock at the last look.
func (u *userReader) isRunning() bool {
	return slices.ContainsFunc(u.last.jobs, func(j Job) bool { return j.State == Running })
}

func (u *userReader) isLooking() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.looking
}

// end closes what it has open, now or when its look has ended.
func (u *userReader) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	if !u.looking {
		u.state.close()
	}
}

func (s *userState) close() {
	for _, w := range s.jobs {
		w.close()
		w.drop()
	}
}

// look looks at the jobs of the user: at every one, or at those that were hinted at.
func (u *userReader) look(now time.Time, hints map[string]bool, most bounds, every bool) userLook {
	s := &u.state
	s.most = most
	if now.Before(s.due) {
		return u.lookForEnds(now, hints)
	}
	hints = s.own(hints)
	clear(s.ends)
	began := s.cost()
	changed := !s.first
	s.first = true
	paths := u.paths()
	switch {
	case u.locked != nil:
		changed = u.openLocked() || changed
	default:
		for _, folder := range paths {
			changed = s.list(folder, now, hints[folder]) || changed
		}
		for _, path := range u.fixed {
			if _, err := os.Lstat(path); err == nil && s.jobs[path] == nil {
				s.jobs[path] = watch("", path, u.uid, s.kept)
				changed = true
			}
		}
	}
	if changed {
		s.divide()
	}
	if s.buf == nil && len(s.jobs) > 0 { // most users have none
		s.buf = make([]byte, region.PulseSize)
	}
	p := patienceForAll()
	check := func(w *watched, why sign) {
		news, there := w.look(p, s.buf, why)
		if !there {
			s.forget(w)
		} else if w.ended {
			w.close() // there may be thousands
		}
		changed = changed || news || !there
	}
	for i, w := range s.looked() {
		why := clock
		if hints[w.folder] {
			why = hint
		} else if !every && !w.wants(now) {
			continue
		}
		if check(w, why); i >= most.open {
			w.close()
		}
	}
	if every {
		s.renew(now, func(w *watched) {
			open := w.dir >= 0
			if check(w, age); !open {
				w.close()
			}
		})
	}
	for _, w := range s.active[len(s.looked()):] {
		w.close()
		w.drop()
	}
	for range len(s.ended)/endedRounds + 1 {
		if every && len(s.ended) > 0 {
			s.turn = (s.turn + 1) % len(s.ended)
			check(s.ended[s.turn], clock)
		}
	}
	for folder := range hints {
		w := s.jobs[filepath.Join(folder, job.RegionName)]
		if w != nil && w.ended {
			check(w, hint)
		}
		if w != nil && w.late {
			s.putOff(folder, later(w.due, now.Add(soonGap)))
		}
	}
	for _, w := range s.active {
		if w.soon(now) {
			s.putOff(w.folder, now.Add(soonGap))
		}
	}
	out := u.last.again(time.Time{})
	if changed {
		s.divide()
		out = s.collect(p, paths)
	}
	s.rest(began)
	if out.putOff = s.lateDue; !out.putOff.IsZero() {
		out.putOff = later(out.putOff, s.due)
	}
	return out
}

// own returns the hints at this user's folders, with those that were put off.
func (s *userState) own(hints map[string]bool) map[string]bool {
	out := s.ownOf(hints)
	maps.Copy(out, s.late)
	s.late, s.lateDue = map[string]bool{}, time.Time{}
	return out
}

// ownOf returns the hints at this user's folders.
func (s *userState) ownOf(hints map[string]bool) map[string]bool {
	out := map[string]bool{}
	for folder := range hints {
		if s.lists[folder] != nil || s.jobs[filepath.Join(folder, job.RegionName)] != nil {
			out[folder] = true
		}
	}
	return out
}

// restShare is how many times as much as one job all of a user's may cost.
const restShare = 4

// rest says when the next look may begin: a user with very many jobs costs no more than a part
// of one processor's time.
func (s *userState) rest(began time.Duration) {
	if took := s.cost() - began; took > 50*time.Millisecond {
		s.due = time.Now().Add(readShare / restShare * took)
	}
}

// list lists a folder again if it has changed, and reports whether it has.
func (s *userState) list(folder string, now time.Time, hinted bool) (changed bool) {
	l := s.lists[folder]
	at, err := job.Changed(folder)
	// The time of a change is as coarse as the kernel's clock: one just after the list may have
	// the same.
	fresh := l != nil && l.at.Sub(time.Unix(at.Unix())) > time.Second
	if l != nil && err == nil && l.changed == at && fresh && now.Sub(l.at) < listAge && !hinted {
		return false
	}
	listed := time.Now()
	most := maxListed // of all folders together
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
			s.jobs[path] = watch(name, path, s.uid, s.kept)
			changed = true
		}
	}
	if l != nil {
		for name := range l.names {
			path := filepath.Join(folder, name, job.RegionName)
			if w := s.jobs[path]; !next.names[name] && w != nil {
				s.forget(w)
				changed = true
			}
		}
	}
	s.lists[folder] = next
	return changed
}

// forget ends looking at a job.
func (s *userState) forget(w *watched) {
	w.close()
	w.drop()
	delete(s.jobs, w.path)
}

// looked returns the jobs that have not ended and are looked at.
func (s *userState) looked() []*watched { return s.active[:min(len(s.active), s.most.active)] }

// isCut reports whether the user has more than is looked at.
func (s *userState) isCut() bool {
	cut := len(s.active) > s.most.active
	for _, l := range s.lists {
		cut = cut || l.cut
	}
	return cut
}

// divide divides the jobs into those that have ended and the others.
func (s *userState) divide() {
	s.active, s.ended = s.active[:0], s.ended[:0]
	for _, w := range s.jobs {
		if w.ended {
			s.ended = append(s.ended, w)
		} else {
			s.active = append(s.active, w)
		}
	}
	byPath := func(a, b *watched) int { return cmp.Compare(a.path, b.path) }
	slices.SortFunc(s.active, byPath)
	if len(s.active) > s.most.active { // those that are shown stay: they have not ended
		slices.SortStableFunc(s.active, func(a, b *watched) int {
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
	slices.SortFunc(s.ended, func(a, b *watched) int {
		return cmp.Or(cmp.Compare(b.created, a.created), cmp.Compare(a.path, b.path))
	})
}

// collect returns the jobs. Of those that have ended the latest are read, and of the others
// nothing is kept.
func (s *userState) collect(p patience.Patience, paths []string) userLook {
	out := userLook{changed: true, cut: s.isCut(), bases: slices.Clone(paths)}
	for i, w := range s.ended {
		if i >= keptEnded {
			w.drop()
			out.hidden++
			continue
		}
		if !w.known {
			if _, there := w.open(); there {
				w.readAll(p)
			}
		}
	}
	for i, w := range slices.Concat(s.looked(), s.ended[:min(len(s.ended), keptEnded)]) {
		if w.ended || w.name != "" && i >= s.most.open {
			out.opened = append(out.opened, w.folder)
		} else if w.name != "" {
			out.active = append(out.active, w.folder)
		}
		if w.shown && w.known {
			out.jobs = append(out.jobs, w.job)
		}
	}
	return out
}

// openLocked finds the file of a region that was found by its lock.
func (u *userReader) openLocked() (changed bool) {
	if len(u.state.jobs) > 0 {
		return false
	}
	dir, name, path, err := u.locked.OpenFolder()
	if err != nil {
		g := &gathering{}
		readLockedInTurn(g, *u.locked, u.kept)
		if len(g.jobs) > 0 { // its file was removed: it is shown as that, and not looked at again
			u.state.jobs[path] = &watched{path: g.jobs[0].Path, folder: filepath.Dir(g.jobs[0].Path), dir: -1, job: g.jobs[0], known: true, shown: true, fixed: true}
		}
		return true
	}
	w := watch("", path, u.uid, u.kept)
	w.region, w.dir, w.vitals = name, dir, job.OpenVitals(dir, name)
	u.state.jobs[path] = w
	return true
}
