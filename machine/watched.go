package machine

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/patience"
	"ration/internal/region"
	"ration/internal/safepath"
)

const (
	// fullAge is how long what was read of a job stands where its words and its locks have not
	// changed: whether a process is stopped, or what it is called, is not among these.
	fullAge = 2 * time.Minute
	// readShare bounds what a job that changes all the time, or takes long to read, costs a
	// Reader: one part of so many of one processor's time.
	readShare = 20
	// readAhead is how much of that it has in hand after a quiet moment: what happens to a job is
	// often several changes, a few milliseconds apart.
	readAhead = 200 * time.Millisecond
)

// watched is a job that a Reader looks at again and again. It is used by one goroutine.
type watched struct {
	name   string // of the job's folder; empty for a region outside the folders of jobs
	owner  int    // whose folder of jobs it is in; ownUser for this user's, in which others' regions may be
	path   string
	folder string // of path
	region string // name of the file in its folder

	dir    int           // descriptor of the job's folder; -1 while closed
	vitals job.Vitals    // open while dir is
	pulse  *region.Pulse // nil while there is no region, or it is closed

	vital job.Vital // as it was when the job was read
	sum   uint64
	equal bool // sum says whether something has changed

	user    *allowance // of whose user it is
	has     kept       // what job has of it
	job     Job
	known   bool // job is what was read
	shown   bool // it is a job, or may be one
	ended   bool
	created int64     // Unix nanoseconds; of one that has ended
	read    time.Time // when job was read
	due     time.Time // not to be read before
	late    bool      // it has changed, and was not due
	// unsettled is since when a process has no lock and is not known to be dead: it is about to end, and
	// nothing that a look asks for tells when it has. ending is how many do.
	unsettled time.Time
	ending    int
	// unwritten is since when one more refusal or death was being written: of its end nothing tells either.
	unwritten time.Time
	askDue    time.Time // when to ask who has their files, at the earliest
	fixed     bool      // it is what it was, and is not looked at again
	reads     int       // how often it was read, for tests
	asked     int       // how often it was asked who has files, for tests
}

func watch(name, path string, owner int, user *allowance) *watched {
	return &watched{name: name, path: path, folder: filepath.Dir(path), owner: owner, user: user, region: filepath.Base(path), dir: -1}
}

// sign is why a job is looked at.
type sign int

const (
	clock sign = iota // it is its turn
	hint              // something has happened in its folder
	// An end is all that is looked for: something has happened, and the user's jobs have cost so much
	// that nothing else is read.
	onlyEnd
	age // what was read of it is old
)

// look looks at the job, and reports whether anything has changed. there is false when its
// folder is gone.
func (w *watched) look(p patience.Patience, buf []byte, why sign) (changed, there bool) {
	if w.fixed {
		return false, true
	}
	before, old := w.vital, why == age || w.ended && p.Now().Sub(w.read) >= fullAge
	if old {
		before = job.Vital{}
	}
	vital, there := w.openSince(before)
	if !there {
		return w.shown, false
	}
	sum, unlocked, equal := uint64(0), 0, w.pulse == nil
	if w.pulse != nil {
		sum, unlocked, equal, _ = w.pulse.Sum(buf)
	}
	now := p.Now()
	w.setUnlocked(unlocked, now)
	if why == onlyEnd && w.unsettled.IsZero() {
		return false, true
	}
	// Who hints may have seen the end of a process that was ending.
	ended := (why == hint || why == onlyEnd) && !w.unsettled.IsZero()
	if w.known && equal && w.equal && !w.again(now) && !ended && sum == w.sum && vital == w.vital && !old {
		w.late = false // it is as it was when it was read
		return false, true
	}
	if !w.known && w.hasEnded(vital) {
		changed = !w.ended
		w.ended, w.shown, w.vital = true, true, vital
		w.close()
		return changed, true
	}
	if w.late = now.Before(w.due); w.late {
		return false, true
	}
	w.vital, w.sum, w.equal = vital, sum, equal // of before it is read: a change meanwhile is seen the next time
	was := watched{shown: w.shown, known: w.known, job: w.job}
	asks := why != onlyEnd && w.asks(now)
	w.readAll(p)
	if asks {
		w.askKeepers(p)
	}
	w.setUnlocked(unlocked, now)
	if w.job.unwritten > was.job.unwritten {
		w.unwritten = now
	} else if w.job.unwritten == 0 {
		w.unwritten = time.Time{}
	}
	return !was.same(w), true
}

// settleTime is how long a process takes to end, as a rule: until then its job is read at each look,
// and it is not asked who has its files, as it still has them itself. Where one takes longer, as a fork
// child has them, it is read, and that is asked, every endingAge: it is to ask every process.
const (
	settleTime = 2 * time.Second
	endingAge  = 5 * time.Second
)

// again reports whether the job is to be read also where nothing has changed.
func (w *watched) again(now time.Time) bool {
	return w.soon(now) || w.asks(now)
}

// asks reports whether it is to be asked who has the files of processes that are ending.
func (w *watched) asks(now time.Time) bool {
	return !w.unsettled.IsZero() && !w.soon(now) && !now.Before(w.askDue)
}

// soon reports whether another look is worth while at once: a process is about to end, or something to
// be written.
func (w *watched) soon(now time.Time) bool {
	return now.Sub(w.unsettled) < settleTime || now.Sub(w.unwritten) < settleTime
}

// wants reports whether the job is to be looked at also where nothing was hinted at: it is not known
// yet, or it is known that what was read of it is old, or nobody could give a hint, as its folder is
// not watched.
func (w *watched) wants(now time.Time) bool {
	return !w.known || w.late || w.soon(now) || w.name == ""
}

// setUnlocked says how many processes have no lock. Where one more is about to end, that is news, however
// long another takes.
func (w *watched) setUnlocked(n int, now time.Time) {
	if n > 0 { // as a rule all have theirs
		n -= w.withoutLock()
	}
	if n <= 0 {
		w.unsettled = time.Time{}
	} else if n > w.ending || w.unsettled.IsZero() {
		w.unsettled = now
	}
	w.ending = max(n, 0)
}

// withoutLock counts what had no lock when the job was read, and is no news: processes that were dead,
// slots that are out of use, and this process, whose own locks the kernel does not tell it of. Of what
// is left out of a job it is not known, and none of it is news.
func (w *watched) withoutLock() int {
	n := int(w.job.Damaged) + w.job.ProcessCount() - len(w.job.Processes)
	for i := range w.job.Processes {
		if p := &w.job.Processes[i]; p.State == Dead || p.PID == os.Getpid() {
			n++
		}
	}
	return n
}

// same reports whether the same is shown of a job. What cannot be read is read again and again,
// with an error of the same text.
func (w *watched) same(as *watched) bool {
	if !w.known || w.shown != as.shown {
		return false
	}
	a, b := w.job, as.job
	a.err, b.err = nil, nil
	return !w.shown || reflect.DeepEqual(a, b)
}

// hasEnded reports whether a job has ended, where that is known without reading it: it was launched,
// no process has a lock, and it does not stand without.
func (w *watched) hasEnded(v job.Vital) bool {
	if !v.Launched || v.Running || w.pulse == nil || w.pulse.Locked() || w.vitals.Standing() {
		return false
	}
	w.created = w.pulse.Created()
	return w.created != 0
}

// readAll reads all of the job.
func (w *watched) readAll(p patience.Patience) {
	began := threadTime()
	w.reads++
	j, err := readRegionAt(w.dir, w.region, w.path, p, false)
	j.takeKeepers(&w.job)
	if w.owner == ownUser || j.UID == w.owner { // another's in this user's folder is not called so
		j.Name = w.name
	}
	w.has = w.user.cut(&j, w.has)
	w.job, w.known, w.read = j, true, p.Now()
	w.due = dueAfter(w.due, w.read, threadTime()-began)
	w.shown = w.name == "" || j.State == Running || !job.EndedOrNotBegun(err)
	w.ended, w.created = w.shown && j.State == Ended, j.Created
	if w.ended {
		w.close()
	}
}

// askKeepers asks who has the files of processes that are ending. What it costs keeps the job from being
// read no longer: it would keep the end of a process from being noticed.
func (w *watched) askKeepers(p patience.Patience) {
	if !slices.ContainsFunc(w.job.Processes, func(p Process) bool { return p.State == Ending }) {
		return
	}
	r, err := region.OpenReadOnlyAt(w.dir, w.region, w.path)
	if err != nil {
		return
	}
	defer r.Close()
	began := threadTime()
	w.asked++
	w.job.addKeepers(r, forIdentities(p))
	w.askDue = p.Now().Add(max(endingAge, readShare*(threadTime()-began)))
}

// takeKeepers takes who has the files of processes that are ending from what was read before.
func (j *Job) takeKeepers(before *Job) {
	was := map[int]*Process{} // by slot
	for i := range before.Processes {
		if p := &before.Processes[i]; len(p.KeptBy) > 0 {
			was[p.Slot] = p
		}
	}
	for i := range j.Processes {
		p := &j.Processes[i]
		if before := was[p.Slot]; p.State == Ending && before != nil && before.Joined == p.Joined {
			p.KeptBy = before.KeptBy
		}
	}
}

// isOld reports whether the job is to be read for no other reason than that.
func (w *watched) isOld(now time.Time) bool { return w.known && !w.fixed && now.Sub(w.read) >= fullAge }

// dueAfter returns when a job may be read again that was due at a time, and whose read cost so much.
func dueAfter(due, now time.Time, cost time.Duration) time.Time {
	if earliest := now.Add(-readAhead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(readShare * cost)
}

// drop forgets what was read of the job.
func (w *watched) drop() {
	w.user.giveBack(w.has)
	w.job, w.known, w.has = Job{}, false, kept{}
}

// open is openSince of what is not known.
func (w *watched) open() (vital job.Vital, there bool) { return w.openSince(job.Vital{}) }

// openSince opens what is to be looked at, unless it is open, and looks at the folder.
func (w *watched) openSince(before job.Vital) (vital job.Vital, there bool) {
	for range 2 {
		if w.dir < 0 {
			dir, err := safepath.OpenFolder(w.folder)
			if err != nil {
				return vital, false
			}
			w.dir, w.vitals = dir, job.OpenVitals(dir, w.region)
		}
		if vital, there = w.vitals.Look(before); there {
			break
		}
		w.close() // a folder of the same name may be there
	}
	if !there {
		return vital, false
	}
	if !vital.Launched && vital.FolderChanged(before) { // the file may be there by now
		w.vitals = job.OpenVitals(w.dir, w.region)
		vital, _ = w.vitals.Look(job.Vital{})
	}
	if w.pulse != nil && vital.Region != w.vital.Region {
		w.pulse.Close()
		w.pulse = nil
	}
	if w.pulse == nil && vital.Region != (job.FileID{}) {
		w.pulse, _ = region.OpenPulseAt(w.dir, w.region, w.path)
	}
	return vital, true
}

// close closes what is open. What was read stays.
func (w *watched) close() {
	if w.pulse != nil {
		w.pulse.Close()
		w.pulse = nil
	}
	if w.dir >= 0 {
		w.vitals.Close()
		_ = unix.Close(w.dir)
		w.dir = -1
	}
}

// threadTime is the processor's time that this thread has used, or 0 where the kernel does not
// say. The caller has the thread to itself.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
