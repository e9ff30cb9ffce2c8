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

	"ration/internal/humanfmt"
	"ration/internal/job"
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
	hints   map[string]bool    // paths of folders in which something has happened
	locks   []Finding          // of the last look at the kernel's locks
	names   []Finding          // of the last look at the folders of users
	putOff  bool

	places   job.Places
	allUsers func() bool
	now      func() time.Time
	patience time.Duration // with all users together, in one Read
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
	// maxListed bounds how many folders of one user's are looked at.
	maxListed = 16384
)

// NewReader returns a Reader of the jobs that Read returns.
func NewReader() *Reader {
	return &Reader{users: map[int]*userReader{}, outside: map[job.FileID]*userReader{}, kept: map[int]*allowance{}, hints: map[string]bool{},
		places: job.AllPlaces, allUsers: job.AllUsers, now: time.Now, patience: userPatience}
}

// Hint says that something has happened in a folder: a job's own, or one of jobs.
func (r *Reader) Hint(folder string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hints[folder] = true
}

// PutOff reports whether the last Read has put off something that was hinted at: a job that was
// read a moment before has to wait, so that none costs much of a processor's time.
func (r *Reader) PutOff() bool {
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
// those of the latest that have: what happens there is worth a Hint.
func (r *Reader) Folders() (bases, active, ended []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.all() {
		bases, active, ended = append(bases, u.last.bases...), append(active, u.last.active...), append(ended, u.last.ended...)
	}
	return bases, active, ended
}

// Read reads the machine. changed is false where it is as it was the last time.
func (r *Reader) Read() (m Machine, changed bool, err error) {
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
	r.find(now, folder)
	hints := r.hints
	r.hints = map[string]bool{}
	deadline, stop := within(r.patience)
	defer stop()
	all := r.all()
	for _, u := range all {
		u.start(now, hints)
	}
	known := map[job.FileID]bool{}
	r.putOff = false
	for _, u := range all {
		answered, news := u.wait(deadline)
		changed, r.putOff = changed || news, r.putOff || answered && u.last.putOff
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

// find finds the users that have jobs, and regions that are locked outside their folders.
func (r *Reader) find(now time.Time, folder string) {
	if r.users[ownUser] == nil {
		r.users[ownUser] = newUserReader(ownUser, "the folder of this user's jobs", nil)
	}
	var fixed []string
	for _, path := range []string{os.Getenv(job.EnvRegion), filepath.Join(job.WellKnown, job.RegionName)} {
		if path != "" {
			fixed = append(fixed, path)
		}
	}
	r.users[ownUser].setPaths(func() []string { return []string{folder} }, fixed)
	if !r.allUsers() || now.Sub(r.found) < findAge {
		return
	}
	r.found = now
	folders, all := r.places.Folders()
	if r.names = nil; !all {
		r.names = []Finding{manyNames(r.places)}
	}
	for _, f := range folders {
		if r.users[f.UID] == nil {
			if r.kept[f.UID] == nil {
				r.kept[f.UID] = &allowance{}
			}
			r.users[f.UID] = newUserReader(f.UID, fmt.Sprintf("the folder of jobs of user %d", f.UID), r.kept[f.UID])
		}
		r.users[f.UID].setPaths(f.Paths, nil)
	}
	r.findLocked()
}

// findLocked finds regions by their locks.
func (r *Reader) findLocked() {
	deadline, stop := within(lockPatience)
	defer stop()
	files, all, err := job.LockedFiles(deadline)
	if err != nil {
		return
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
	for id, u := range r.outside {
		if all && !locked[id] || known[id] {
			u.end()
			delete(r.outside, id)
		}
	}
}
