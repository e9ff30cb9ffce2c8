package machine

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/budget"
	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/safepath"
)

const (
	// fullAge is after how long a job is read again although its words and locks are unchanged: they do
	// not show whether a process is stopped, nor its present name.
	fullAge = 2 * time.Minute
	// readShare bounds what one job costs that changes all the time, or takes long to read: one part in
	// readShare of one processor's time.
	readShare = 20
	// readAhead is how much of that a job may use at once after a quiet moment: what happens to a job is
	// often several changes, a few milliseconds apart.
	readAhead = 200 * time.Millisecond
)

// tracked is a job that a scanner looks at again and again. One goroutine uses it.
type tracked struct {
	name   string // of the job's folder; empty for a region outside the folders of jobs
	owner  int    // the UID whose folder of jobs it is in; ownUser for this user's, which may hold others' regions
	path   string
	folder string // of path
	region string // name of the file in its folder

	dir    int           // descriptor of the job's folder; -1 while closed
	vitals job.Vitals    // open while dir is
	pulse  *region.Pulse // nil while there is no region, or it is closed

	// The state when the job was read: what the folder showed, a sum over the region's words and locks,
	// and whether an equal sum means that nothing has changed.
	vital job.Vital
	sum   uint64
	exact bool

	quota   *quota // of its user
	has     used   // of the quota
	job     Job
	known   bool // job is what was read
	shown   bool // it is a job, or may be one
	ended   bool
	created time.Time // of a job that has ended
	read    time.Time // when job was read
	due     time.Time // not to be read before
	late    bool      // it has changed, and was not due
	// endingSince is since when a process has no lock and is not known to be dead. It is about to end, and
	// no word or lock will show that it has. ending is how many such processes there are.
	endingSince time.Time
	ending      int
	// writingSince is since when one more refusal or death was being written. Nothing shows its end either.
	writingSince time.Time
	askDue       time.Time // not to ask before which processes keep the files of those that are ending
	fixed        bool      // it never changes, and is not looked at again
	reads        int       // how often it was read, for tests
	asked        int       // how often it was asked for keepers, for tests
}

func track(name, path string, owner int, q *quota) *tracked {
	return &tracked{name: name, path: path, folder: filepath.Dir(path), owner: owner, quota: q, region: filepath.Base(path), dir: -1}
}

// reason is why a job is looked at.
type reason int

const (
	clock     reason = iota // it is its turn
	hint                    // something has happened in its folder
	onlyDeath               // something has happened, and the user's jobs rest: look for deaths, and read nothing else
	age                     // what was read of it is old
)

// look looks at the job, reads it if that is needed, and reports whether it has changed. there is false if
// its folder is gone.
func (t *tracked) look(p budget.Budget, buf []byte, why reason) (changed, there bool) {
	if t.fixed {
		return false, true
	}
	before, old := t.vital, why == age || t.ended && p.Now().Sub(t.read) >= fullAge
	if old {
		before = job.Vital{}
	}
	vital, there := t.openSince(before)
	if !there {
		return t.shown, false
	}
	sum, unlocked, exact := uint64(0), 0, t.pulse == nil
	if t.pulse != nil {
		sum, unlocked, exact, _ = t.pulse.Sum(buf)
	}
	now := p.Now()
	t.setUnlocked(unlocked, now)
	if why == onlyDeath && t.endingSince.IsZero() {
		return false, true
	}
	// The hint may be about the end of a process that was ending.
	ended := (why == hint || why == onlyDeath) && !t.endingSince.IsZero()
	if t.known && exact && t.exact && !t.again(now) && !ended && sum == t.sum && vital == t.vital && !old {
		t.late = false // it is as it was when it was read
		return false, true
	}
	if !t.known && t.hasEnded(vital) {
		changed = !t.ended
		t.ended, t.shown, t.vital = true, true, vital
		t.close()
		return changed, true
	}
	if t.late = now.Before(t.due); t.late {
		return false, true
	}
	t.vital, t.sum, t.exact = vital, sum, exact // from before the read, so that the next look sees a change during it
	was := tracked{shown: t.shown, known: t.known, job: t.job}
	asks := why != onlyDeath && t.asks(now)
	t.readAll(p)
	if asks {
		t.askKeepers(p)
	}
	t.setUnlocked(unlocked, now)
	if t.job.unwritten > was.job.unwritten {
		t.writingSince = now
	} else if t.job.unwritten == 0 {
		t.writingSince = time.Time{}
	}
	return !was.same(t), true
}

// settleTime is how long a process usually takes to end. Until then its job is read in each scan, and
// nothing is asked about keepers, as the process still has its own files. After that, as a fork child keeps
// the files, the job is read and asked about only every endingAge: that is a question to every process.
const (
	settleTime = 2 * time.Second
	endingAge  = 5 * time.Second
)

// again reports whether the job must be read although nothing has changed.
func (t *tracked) again(now time.Time) bool {
	return t.soon(now) || t.asks(now)
}

// asks reports whether it is time to ask which processes keep the files of those that are ending.
func (t *tracked) asks(now time.Time) bool {
	return !t.endingSince.IsZero() && !t.soon(now) && !now.Before(t.askDue)
}

// soon reports whether the job must be looked at again soon: a process is about to end, or a record is
// being written.
func (t *tracked) soon(now time.Time) bool {
	return now.Sub(t.endingSince) < settleTime || now.Sub(t.writingSince) < settleTime
}

// wants reports whether the job must be looked at without a hint: it is not known yet, or known to be old,
// or its folder is not watched.
func (t *tracked) wants(now time.Time) bool {
	return !t.known || t.late || t.soon(now) || t.name == ""
}

// setUnlocked sets how many processes have no lock. Another one that is about to end is news, even if an
// earlier one takes long.
func (t *tracked) setUnlocked(n int, now time.Time) {
	if n > 0 { // as a rule all have theirs
		n -= t.withoutLock()
	}
	if n <= 0 {
		t.endingSince = time.Time{}
	} else if n > t.ending || t.endingSince.IsZero() {
		t.endingSince = now
	}
	t.ending = max(n, 0)
}

// withoutLock counts the processes without a lock that are no news: dead ones, slots out of use, and this
// process, whose own locks the kernel does not report to it. Omitted processes count too.
func (t *tracked) withoutLock() int {
	n := int(t.job.Damaged) + t.job.ProcessCount() - len(t.job.Processes)
	for i := range t.job.Processes {
		if p := &t.job.Processes[i]; p.State == Dead || p.PID == os.Getpid() {
			n++
		}
	}
	return n
}

// same reports whether the same is shown of a job.
func (t *tracked) same(as *tracked) bool {
	return t.known && t.shown == as.shown && (!t.shown || t.job.Same(&as.job))
}

// hasEnded reports whether a job has ended, as far as that is known without reading it: it was launched, no
// process has a lock, and it does not exist on its own (ration create).
func (t *tracked) hasEnded(v job.Vital) bool {
	if !v.Launched || v.Running || t.pulse == nil || t.pulse.Locked() || t.vitals.Standing() {
		return false
	}
	t.created = timeOf(t.pulse.Created())
	return !t.created.IsZero()
}

// readAll reads all of the job.
func (t *tracked) readAll(p budget.Budget) {
	began := threadTime()
	t.reads++
	j, err := readRegionAt(t.dir, t.region, t.path, p, false)
	j.takeKeepers(&t.job)
	if t.owner == ownUser || j.UID == t.owner { // do not give another user's job the name that a link to it has
		j.Name = t.name
	}
	t.has = t.quota.cut(&j, t.has)
	t.job, t.known, t.read = j, true, p.Now()
	t.due = dueAfter(t.due, t.read, threadTime()-began)
	t.shown = t.name == "" || j.State == Running || !job.EndedOrNotBegun(err)
	t.ended, t.created = t.shown && j.State == Ended, j.Created
	if t.ended {
		t.close()
	}
}

// askKeepers asks which processes keep the files of those that are ending. Its cost does not delay the next
// read of the job, so that the end of a process is noticed.
func (t *tracked) askKeepers(p budget.Budget) {
	if !slices.ContainsFunc(t.job.Processes, func(p Process) bool { return p.State == Ending }) {
		return
	}
	r, err := region.OpenReadOnlyAt(t.dir, t.region, t.path)
	if err != nil {
		return
	}
	defer r.Close()
	began := threadTime()
	t.asked++
	t.job.addKeepers(r, forIdentities(p))
	t.askDue = p.Now().Add(max(endingAge, readShare*(threadTime()-began)))
}

// takeKeepers copies KeptBy of processes that are still ending from an earlier read.
func (j *Job) takeKeepers(before *Job) {
	was := map[int]*Process{} // by slot
	for i := range before.Processes {
		if p := &before.Processes[i]; len(p.KeptBy) > 0 {
			was[p.Slot] = p
		}
	}
	for i := range j.Processes {
		p := &j.Processes[i]
		if before := was[p.Slot]; p.State == Ending && before != nil && before.Joined.Equal(p.Joined) {
			p.KeptBy = before.KeptBy
		}
	}
}

// isOld reports whether the job must be read only because of its age.
func (t *tracked) isOld(now time.Time) bool { return t.known && !t.fixed && now.Sub(t.read) >= fullAge }

// dueAfter returns when a job may be read again, after a read that was due at a time and had a cost.
func dueAfter(due, now time.Time, cost time.Duration) time.Time {
	if earliest := now.Add(-readAhead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(readShare * cost)
}

// drop drops what was read of the job.
func (t *tracked) drop() {
	t.quota.giveBack(t.has)
	t.job, t.known, t.has = Job{}, false, used{}
}

// open opens the job's files.
func (t *tracked) open() (vital job.Vital, there bool) { return t.openSince(job.Vital{}) }

// openSince opens the job's files, unless they are open, and looks at the folder. before is what the folder
// showed at the last look.
func (t *tracked) openSince(before job.Vital) (vital job.Vital, there bool) {
	for range 2 {
		if t.dir < 0 {
			dir, err := safepath.OpenFolder(t.folder)
			if err != nil {
				return vital, false
			}
			t.dir, t.vitals = dir, job.OpenVitals(dir, t.region)
		}
		if vital, there = t.vitals.Look(before); there {
			break
		}
		t.close() // a folder of the same name may be there
	}
	if !there {
		return vital, false
	}
	if !vital.Launched && vital.FolderChanged(before) { // the file may be there by now
		t.vitals = job.OpenVitals(t.dir, t.region)
		vital, _ = t.vitals.Look(job.Vital{})
	}
	if t.pulse != nil && vital.Region != t.vital.Region {
		t.pulse.Close()
		t.pulse = nil
	}
	if t.pulse == nil && vital.Region != (job.FileID{}) {
		t.pulse, _ = region.OpenPulseAt(t.dir, t.region, t.path)
	}
	return vital, true
}

// close closes the job's files, and keeps what was read.
func (t *tracked) close() {
	if t.pulse != nil {
		t.pulse.Close()
		t.pulse = nil
	}
	if t.dir >= 0 {
		t.vitals.Close()
		_ = unix.Close(t.dir)
		t.dir = -1
	}
}

// threadTime returns the processor time that this thread has used, or 0 if the kernel does not say. The
// caller has locked the goroutine to its thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
