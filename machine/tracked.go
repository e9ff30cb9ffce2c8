package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/safepath"
)

const (
	// fullAge is when a job is read again even if its words and locks are unchanged, because they
	// do not show whether a process is stopped, or what its current name is.
	fullAge = 2 * time.Minute
	// readShare bounds the cost of a job that changes all the time or takes long to read, to
	// 1/readShare of one processor.
	readShare = 20
	// readAhead is how much of that time a job may use at once after a quiet moment, because
	// changes of a job often come in groups, a few milliseconds apart.
	readAhead = 200 * time.Millisecond
)

// tracked is a job that a scanner scans repeatedly. It is not safe for concurrent use.
type tracked struct {
	name   string // name of the job's folder; empty for a region outside the folders of jobs
	owner  int    // UID of the folder of jobs it is in; ownUser for this user's folder, which may hold others' regions
	path   string
	folder string // folder of path
	region string // file name in that folder

	dir    int           // descriptor of the job's folder; -1 if closed
	vitals job.Vitals    // open if dir is
	pulse  *region.Pulse // nil if there is no region, or it is closed

	// The state when the job was read: the state of its folder, a checksum of the region's words
	// and locks, and whether an equal checksum proves that nothing has changed.
	vital job.Vital
	sum   uint64
	exact bool

	quota   *quota // quota of its user
	has     used   // part of the quota that it uses
	job     Job
	known   bool // job has been read
	shown   bool // it is a job, or may be one
	ended   bool
	created time.Time // for an ended job
	read    time.Time // when job was read
	due     time.Time // must not be read earlier
	late    bool      // it has changed, but was not due
	// endingSince is since when a process has had no lock without being known as dead. It is about
	// to end, and no word or lock will show when it has ended. ending is the number of such
	// processes.
	endingSince time.Time
	ending      int
	// writingSince is since when one more refusal or death was being written. Nothing shows when
	// that is done either.
	writingSince time.Time
	askDue       time.Time // earliest time to ask again which processes keep the files of ending ones open
	fixed        bool      // it never changes, and is not checked again
	own          Reads     // reads of accounts so far
	reads        int       // number of reads, for tests
	asked        int       // number of queries for keepers, for tests
}

func track(name, path string, owner int, q *quota) *tracked {
	return &tracked{name: name, path: path, folder: filepath.Dir(path), owner: owner, quota: q, region: filepath.Base(path), dir: -1}
}

// reason is why a job is checked.
type reason int

const (
	clock     reason = iota // the timer
	hint                    // something happened in its folder
	onlyDeath               // something happened, but the user's jobs rest: find deaths, and read nothing else
	age                     // the last read is old
)

// look checks the job, reads it if necessary, and reports whether it has changed. there is false if
// its folder was removed.
func (t *tracked) look(p safepath.Budget, buf []byte, why reason) (changed, there bool) {
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
	// The hint may mean that a process which was ending has ended.
	ended := (why == hint || why == onlyDeath) && !t.endingSince.IsZero()
	if t.known && exact && t.exact && !t.again(now) && !ended && sum == t.sum && vital == t.vital && !old {
		t.late = false // unchanged since it was read
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
	t.vital, t.sum, t.exact = vital, sum, exact // from before the read, so that the next check sees a change during the read
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
	if was.same(t) {
		t.job.version = was.job.version
		return false, true
	}
	return true, true
}

// settleTime is how long a process usually takes to end. Until then its job is read in each scan,
// without a query for keepers, because the process still has its own files. After that, a fork
// child probably keeps the files open. Then the job is read and queried only every endingAge,
// because the query inspects every process of the machine.
const (
	settleTime = 2 * time.Second
	endingAge  = 5 * time.Second
)

// again reports whether the job must be read although nothing has changed.
func (t *tracked) again(now time.Time) bool {
	return t.soon(now) || t.asks(now) || t.atWork(now)
}

// workAge is how often a job with signs of work is read: a sign expires without a change (hasWork).
const workAge = time.Second

// atWork reports whether the job had signs of work when it was read, which may have expired since.
func (t *tracked) atWork(now time.Time) bool {
	return now.Sub(t.read) >= workAge && slices.ContainsFunc(t.job.Devices, func(d Device) bool { return d.Compute != nil && d.Compute.Working > 0 })
}

// asks reports whether it is time to ask which processes keep the files of ending ones open.
func (t *tracked) asks(now time.Time) bool {
	return !t.endingSince.IsZero() && !t.soon(now) && !now.Before(t.askDue)
}

// soon reports whether the job must be checked again soon: a process is about to end, or a record
// is being written.
func (t *tracked) soon(now time.Time) bool {
	return now.Sub(t.endingSince) < settleTime || now.Sub(t.writingSince) < settleTime
}

// wants reports whether the job must be checked without a hint: it has not been read, it is known
// to be out of date, or its folder is not watched.
func (t *tracked) wants(now time.Time) bool {
	return !t.known || t.late || t.soon(now) || t.name == ""
}

// setUnlocked sets how many processes have no lock. One more process that is about to end is a
// change, even if an earlier one takes long to end.
func (t *tracked) setUnlocked(n int, now time.Time) {
	if n > 0 { // usually every process has a lock
		n -= t.withoutLock()
	}
	if n <= 0 {
		t.endingSince = time.Time{}
	} else if n > t.ending || t.endingSince.IsZero() {
		t.endingSince = now
	}
	t.ending = max(n, 0)
}

// withoutLock counts processes that are expected to have no lock: dead ones, slots out of use, and
// this process, because the kernel does not report a process's own locks to it. It includes omitted
// processes.
func (t *tracked) withoutLock() int {
	n := int(t.job.Damaged) + t.job.ProcessCount() - len(t.job.Processes)
	for i := range t.job.Processes {
		if p := &t.job.Processes[i]; p.State == Dead || p.PID == os.Getpid() {
			n++
		}
	}
	return n
}

// same reports whether two reads of a job show the same.
func (t *tracked) same(as *tracked) bool {
	return t.known && t.shown == as.shown && (!t.shown || t.job.Same(&as.job))
}

// hasEnded reports whether a job has ended, as far as its folder and locks show it: it was started,
// no process holds a lock, and ration create did not make it.
func (t *tracked) hasEnded(v job.Vital) bool {
	if !v.Launched || v.Running || job.IsRun(t.path) || t.pulse == nil || t.pulse.Locked() || t.vitals.Standing() {
		return false
	}
	t.created = timeOf(t.pulse.Created())
	return !t.created.IsZero()
}

// reads counts the reads of jobs in this process, for Job.version.
var reads atomic.Uint64

// readAll reads all of the job.
func (t *tracked) readAll(p safepath.Budget) {
	began := threadTime()
	t.reads++
	j, err := readRegionAt(t.dir, t.region, t.path, p, false)
	j.takeKeepers(&t.job)
	j.Reads, t.own = j.Reads.and(t.own), t.own.and(j.own)
	if t.owner == ownUser || j.UID == t.owner { // another user's job must not get the name of a link to it
		j.setName(t.name)
	}
	t.has = t.quota.cut(&j, t.has)
	j.version = reads.Add(1)
	t.job, t.known, t.read = j, true, p.Now()
	if t.pulse != nil {
		t.pulse.FindLimits(t.dir, t.region) // which may be younger than the region
	}
	t.due = dueAfter(t.due, t.read, threadTime()-began)
	t.shown = t.name == "" && !errors.Is(err, errUnready) || j.State == Running || !job.EndedOrNotBegun(err)
	t.ended, t.created = t.shown && j.State == Ended, j.Created
	if t.ended {
		t.close()
	}
}

// askKeepers finds the processes that keep the files of ending ones open. Its cost does not delay
// the next read of the job, so the end of a process is noticed in time.
func (t *tracked) askKeepers(p safepath.Budget) {
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

// takeKeepers copies KeptBy from an earlier read, for processes that are still ending.
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

// isOld reports whether the job must be read again only because the last read is old.
func (t *tracked) isOld(now time.Time) bool { return t.known && !t.fixed && now.Sub(t.read) >= fullAge }

// dueAfter returns when a job may be read again, given when the last read was due and how much it
// cost.
func dueAfter(due, now time.Time, cost time.Duration) time.Time {
	if earliest := now.Add(-readAhead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(readShare * cost)
}

// drop discards the result of the last read.
func (t *tracked) drop() {
	t.quota.giveBack(t.has)
	t.job, t.known, t.has = Job{}, false, used{}
}

// open opens the job's files.
func (t *tracked) open() (vital job.Vital, there bool) { return t.openSince(job.Vital{}) }

// openSince opens the job's files, unless they are open, and checks the folder. before is the state
// of the folder at the last check.
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
		t.close() // another folder may have the same name now
	}
	if !there {
		return vital, false
	}
	if !vital.Launched && vital.FolderChanged(before) { // the file may exist by now
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

// close closes the job's files, and keeps the result of the last read.
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

// threadTime returns the processor time of this thread, or 0 if the kernel does not report it. The
// caller has locked the goroutine to its thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
