package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
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

// A Reader reads the machine again and again, as Read does, and reads anew only the jobs that
// have changed. Of jobs that have ended it returns the latest few of each user, and counts the
// others (Machine.Hidden).
//
// It keeps descriptors of the files of jobs that have not ended, takes no lock and writes
// nothing. Each user's jobs are read beside those of the others: one whose folder does not
// answer costs a Read two seconds once, is one of the Findings, and is left alone until it
// answers.
type Reader struct {
	mu      sync.Mutex          // held while it reads
	users   map[int]*userReader // by UID; ownUser are this user's
	outside map[job.FileID]*userReader
	kept    map[int]*allowance // by UID, of both
	found   time.Time          // when the folders of users, and the kernel's locks, were last looked at
	locks   []Finding          // of the last look at the kernel's locks
	names   []Finding          // of the last look at the folders of users
	putOff  time.Time          // zero for nothing
	looking chan struct{}      // the places of looks

	hintMu sync.Mutex
	hints  map[string]bool // under hintMu: paths of folders in which something has happened

	places   job.Places
	allUsers func() bool
	now      func() time.Time
	patience time.Duration // with all users together, in one Read
	files    int           // descriptors that jobs may have open, of all users together
	active   int           // jobs of one user that have not ended and are looked at
}

const (
	ownUser = -1
	// findAge is how often it is looked which users there are, and which regions are locked
	// outside their folders.
	findAge = 5 * time.Second
	// listAge is how often a folder is listed where nothing says that it has changed.
	listAge = time.Minute
	// endedRounds is in how many Reads each job that has ended is looked at once: another may
	// begin in its folder, and no hint was given.
	endedRounds = 600
	// keptEnded is how many jobs of a user that have ended are returned.
	keptEnded = job.Kept
	// maxListed bounds how many folders of one user's are known, and maxActive of how many of
	// these, which are of jobs that have not ended, more is read and kept.
	maxListed = 16384
	maxActive = 2048
	// jobFiles is how many descriptors a job has open at most. Half of what this process may open
	// is for jobs, and divided among the users who have some: a user with very many jobs takes
	// none from the others. Those of which nothing is kept open are opened for each look.
	jobFiles = 3
	// maxOutside bounds how many regions are looked at that were found by their locks, beyond those
	// that the kernel's list has now.
	maxOutside = 1280
	minOpen    = 8
)

// NewReader returns a Reader of the jobs that Read returns.
func NewReader() *Reader {
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return &Reader{files: int(min(files.Cur, 1<<20)) / 2, active: maxActive, users: map[int]*userReader{}, outside: map[job.FileID]*userReader{}, kept: map[int]*allowance{}, hints: map[string]bool{}, looking: make(chan struct{}, maxLooking),
		places: job.AllPlaces, allUsers: job.AllUsers, now: time.Now, patience: userPatience}
}

// Hint says that something has happened in a folder: a job's own, or one of jobs. It does not wait
// for a Read that is under way.
func (r *Reader) Hint(folder string) {
	r.hintMu.Lock()
	defer r.hintMu.Unlock()
	r.hints[folder] = true
}

// PutOff returns when another Read is worth while, whatever happens: the last has put off something that
// was hinted at, as a job that was read a moment before has to wait, so that none costs much of a
// processor's time, or a process is about to end. It is zero where neither is so.
func (r *Reader) PutOff() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.putOff
}

// Close closes all descriptors. A user's that do not answer are closed when they do.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.all() {
		u.end()
	}
	clear(r.users)
	clear(r.outside)
}

// all returns the readers of users in order, and then those of regions elsewhere.
func (r *Reader) all() (out []*userReader) {
	for _, u := range r.users {
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b *userReader) int { return cmp.Compare(a.uid, b.uid) })
	for _, u := range r.outside {
		out = append(out, u)
	}
	return out
}

// Folders returns the folders in which jobs come and go, those of jobs that have not ended, and
// those of the latest that have, or which are so many that their files are opened at each look: what
// happens there is worth a Hint.
func (r *Reader) Folders() (bases, active, opened []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.all() {
		bases, active, opened = append(bases, u.last.bases...), append(active, u.last.active...), append(opened, u.last.opened...)
	}
	return bases, active, opened
}

// Read reads the machine. changed is false where it is as it was the last time.
func (r *Reader) Read() (m Machine, changed bool, err error) { return r.look(true) }

// ReadHinted is Read where only what was hinted at is looked at, with what was put off. All else is
// as it was the last time: it costs what has happened, and not what there is.
func (r *Reader) ReadHinted() (m Machine, changed bool, err error) { return r.look(false) }

// look reads the machine, with all jobs or with those that were hinted at.
func (r *Reader) look(every bool) (m Machine, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	folder := job.Folder()
	m = Machine{Folder: folder, Devices: []GPU{}, Jobs: []Job{}, Outside: []Outside{}, Findings: []Finding{}}
	if reason, err := job.UntrustedReason(folder); err == nil && reason != "" || err != nil && !errors.Is(err, fs.ErrNotExist) {
		if _, err := job.List(); err != nil {
			return m, true, err
		}
	}
	now := r.now()
	changed = r.find(now, folder)
	hints := r.takeHints()
	deadline, stop := within(r.patience)
	defer stop()
	all := r.all()
	most := bounds{r.active, r.openOfEach(all)}
	for _, u := range all {
		u.start(now, hints, most, every, r.looking)
	}
	known := map[job.FileID]bool{}
	r.putOff = time.Time{}
	for _, u := range all {
		answered, news := u.wait(deadline)
		changed = changed || news
		if answered {
			r.putOff = earlier(r.putOff, u.last.putOff)
		}
		for _, j := range u.last.jobs {
			if !known[j.file] {
				known[j.file] = true
				m.Jobs = append(m.Jobs, j)
			}
		}
		m.Hidden += u.last.hidden
		if !answered {
			m.addFinding(Finding{Kind: Unanswering, Device: -1,
				Text:   fmt.Sprintf("%s could not be read within %s; what is shown of it may be old", u.what, humanfmt.Span(r.patience)),
				Remedy: "look at the file system that it is on, and at how much is in it"})
		} else if u.last.cut {
			m.addFinding(Finding{Kind: Unanswering, Device: -1, Text: u.what + " holds more than is read of it; what is shown is not all",
				Remedy: "have the user remove jobs that have ended: ration rm --stale"})
		}
	}
	m.Findings = append(append(m.Findings, r.names...), r.locks...)
	m.addFloods()
	return m, changed, nil
}

func (r *Reader) takeHints() map[string]bool {
	r.hintMu.Lock()
	defer r.hintMu.Unlock()
	hints := r.hints
	r.hints = map[string]bool{}
	return hints
}

// openOfEach returns of how many jobs of each user descriptors are kept.
func (r *Reader) openOfEach(all []*userReader) int {
	users := 1
	for _, u := range all {
		if len(u.last.active) > 0 {
			users++
		}
	}
	return max(minOpen, r.files/jobFiles/users)
}

// find finds the users that have jobs, and regions that are locked outside their folders. It
// reports whether jobs are gone with their user.
func (r *Reader) find(now time.Time, folder string) (gone bool) {
	if r.users[ownUser] == nil {
		r.users[ownUser] = newUserReader(ownUser, "the folder of this user's jobs", nil)
	}
	var fixed []string
	others := []string{os.Getenv(job.EnvRegion), filepath.Join(job.WellKnown, job.RegionName)}
	if folder != job.RootFolder { // a policy's, as Read has them
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
	r.users[ownUser].setPaths(func() []string { return []string{folder} }, fixed)
	if !r.allUsers() || now.Sub(r.found) < findAge {
		return false
	}
	r.found = now
	folders, all := r.places.Folders()
	if r.names = nil; !all {
		r.names = []Finding{manyNames(r.places)}
	}
	there := map[int]bool{ownUser: true}
	for _, f := range folders {
		there[f.UID] = true
		if r.users[f.UID] == nil {
			account := proc.Account(f.UID) // the UIDs that are lent to a user have the allowance of one
			if r.kept[account] == nil {
				r.kept[account] = &allowance{}
			}
			r.users[f.UID] = newUserReader(f.UID, fmt.Sprintf("the folder of jobs of user %d", f.UID), r.kept[account])
		}
		r.users[f.UID].setPaths(f.Paths, nil)
	}
	for uid, u := range r.users {
		// One user can have the folders of thousands, each for a moment. One that does not answer
		// stays, so that there is no second look at it.
		if !there[uid] && !u.isLooking() {
			gone = gone || len(u.last.jobs) > 0
			u.end()
			delete(r.users, uid)
			delete(r.kept, uid)
		}
	}
	return r.findLocked() || gone
}

// findLocked finds regions by their locks, and reports whether jobs are gone.
func (r *Reader) findLocked() (gone bool) {
	deadline, stop := within(lockPatience)
	defer stop()
	files, all, err := job.LockedFiles(deadline)
	if err != nil {
		return false
	}
	r.locks = nil
	if !all {
		r.locks = []Finding{{Kind: Unanswering, Device: -1,
			Text:   "the kernel's list of locks is too long to be read; jobs outside the folders of jobs may be missing",
			Remedy: "look in /proc/locks for the process that has so many"}}
	}
	known, locked := map[job.FileID]bool{}, map[job.FileID]bool{}
	for _, u := range r.users {
		for _, j := range u.last.jobs {
			known[j.file] = true
		}
	}
	for _, f := range files {
		locked[f.ID] = true
		if !known[f.ID] && r.outside[f.ID] == nil {
			u := newUserReader(0, "a region that a process has locked", allowanceOf(r.kept, f, func() *allowance { return &allowance{} }))
			u.locked = &f
			r.outside[f.ID] = u
		}
	}
	return r.forgetOutside(known, locked, all)
}

// forgetOutside ends looking at regions that are known otherwise, or not locked any more. all says
// whether locked are all that are. It reports whether jobs are gone.
func (r *Reader) forgetOutside(known, locked map[job.FileID]bool, all bool) (gone bool) {
	for id, u := range r.outside {
		// One that is not in a list which is not whole may be locked all the same.
		ended := !locked[id] && (all || !u.isRunning() || len(r.outside) > maxOutside)
		if (ended || known[id]) && !u.isLooking() {
			gone = gone || len(u.last.jobs) > 0
			u.end()
			delete(r.outside, id)
		}
	}
	return gone
}
