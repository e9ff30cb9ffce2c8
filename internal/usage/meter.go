package usage

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/machine"
)

const (
	// Step is the length of the shortest period, and how often the accounts are written.
	Step = 10 * time.Second
	// maxGap is the longest time between two looks that counts as watched. After a longer one, as after the
	// machine was suspended, nobody knows what was held.
	maxGap = 15 * time.Second
	// maxSubjects is how many accounts one user gets in a day, together with its subordinate users: one for each job and
	// device that the job has used. The user's other jobs share one for each device, and those of all its subordinate users another: the
	// file has a bound, and no user may fill it.
	maxSubjects = 512
	// maxCount bounds how far a job's own counters advance between two looks: the job can write them.
	maxCount = 1 << 16
	// maxLate is how much of the device's time a job's counter may get at once: the time of a kernel is counted
	// when it has ended.
	maxLate = uint64(time.Minute)
)

// held is what a job held on a device at the last look.
type held struct {
	used, limit uint64
	doubted     uint64 // the part of used that the driver does not confirm
	asleep      uint64 // jobs that sleep, with memory of the device put aside
}

// add adds what another job holds.
func (h held) add(more held) held {
	return held{saturate(h.used, more.used), saturate(h.limit, more.limit), saturate(h.doubted, more.doubted), h.asleep + more.asleep}
}

// counted is what a job's own counters have counted on one device.
type counted struct {
	refused, died uint64
	used          uint64 // nanoseconds of the device's time
	inTurn        uint64 // the part of it in turns of its own
	peak          uint64 // bytes
}

// counter identifies them. The subject does not: until a process of the job has found out the device's UUID, it
// is another one.
type counter struct {
	job    machine.JobID
	device int
}

// Meter adds up what jobs use, from looks at the machine. It is safe for concurrent use.
type Meter struct {
	mu      sync.Mutex
	first   time.Time // of the first look
	at      time.Time // of the last look; zero before the first
	jobs    map[Subject]held
	counts  map[counter]counted
	denied  map[int]uint64   // by UID: rations that a policy had refused at the last look
	worked  map[Subject]bool // whether it worked in this step, for those of which it is known
	outside map[string]bool  // by UUID: devices with processes of no job in this step
	turns   map[Subject]*turns
	period  Period
	day     time.Time
	members map[int]map[Subject]bool // by proc.Account: subjects with an account of this day
	others  map[int]Subject          // by proc.Account: the subordinate user in whose account OtherJobs of all of them are
	account func(uid int) int        // proc.Account, except in tests
	user    func(uid int) int        // account, asked once for each user in a look
	unpaid  map[counter]uint64       // nanoseconds in which the driver has seen work that the job's counter does not have
}

// NewMeter returns a meter that has not looked yet.
func NewMeter() *Meter {
	return &Meter{jobs: map[Subject]held{}, worked: map[Subject]bool{}, outside: map[string]bool{}, turns: map[Subject]*turns{}, account: proc.Account, period: Period{Sums: map[Subject]Sums{}}}
}

// Look counts what was held since the last look, and notes what is held now. If memory changed in between,
// the time of the change is unknown: the earlier amount counts, and the difference is the possible error.
func (m *Meter) Look(mc *machine.Machine, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.user = askedOnce(m.account)
	jobs, counts, took := make(map[Subject]held, len(m.jobs)), make(map[counter]counted, len(m.counts)), map[Subject]uint64{}
	for i := range mc.Jobs {
		j := &mc.Jobs[i]
		if j.Error != "" {
			continue
		}
		m.noteCounters(counts, took, mc, j, now)
		if j.State != machine.Ended {
			m.note(jobs, mc, j, now)
		}
	}
	for i := range mc.Removed {
		m.noteCounters(counts, took, mc, &mc.Removed[i], now)
	}
	for _, o := range mc.Outside {
		for i := range mc.Devices {
			if mc.Devices[i].Device == o.Device {
				m.outside[mc.Devices[i].UUID] = true
			}
		}
	}
	m.noteDenied(mc, now)
	if m.period.At.IsZero() {
		m.period.At = now
	}
	span := now.Sub(m.at)
	if known := !m.at.IsZero() && span > 0 && span <= maxGap; known {
		m.period.Watched += span
		for s, was := range m.jobs {
			m.count(s, was, jobs[s], span)
		}
		for s, is := range jobs {
			if _, there := m.jobs[s]; !there {
				m.count(s, held{}, is, span)
			}
		}
	}
	if m.first.IsZero() {
		m.first = now
	}
	m.jobs, m.counts, m.at = jobs, counts, now
}

// Memory of which a job and the driver count about the same differs by no more than this, or by a fiftieth.
const drift = 64 << 20

// note adds what a job holds.
func (m *Meter) note(jobs map[Subject]held, mc *machine.Machine, j *machine.Job, now time.Time) {
	own := map[Subject]held{} // the job may name one device several times
	for n := range j.Devices {
		d := &j.Devices[n]
		if _, ruled := job.PolicyUser(j.Path); d.Used == 0 && d.Driver == 0 && d.Peak == 0 && (!ruled || d.UUID == "") {
			continue // the limit may be for a device that does not exist; a policy's are for devices that do
		}
		// The driver's count is that of the job's processes, as the kernel knows them. A job that writes
		// less than that into its own region does not pay less.
		used := max(d.Used, d.Driver)
		capacity, there := capacityOf(mc, d)
		if !there {
			if used = d.Driver; used == 0 {
				continue
			}
		}
		s := m.subject(mc, j, d, now)
		h := own[s]
		h.used = saturate(h.used, used)
		if d.Driver != 0 && used > d.Driver && used-d.Driver > max(drift, d.Driver/50) {
			h.doubted = saturate(h.doubted, used-d.Driver)
		}
		limit := d.Limit
		if capacity != 0 {
			h.used, limit = min(h.used, capacity), min(limit, capacity)
		}
		switch {
		case j.LeavesRoom(): // its limits count for no other job, and for nothing here
			if d.Aside > 0 {
				h.asleep = 1
			}
		case d.Limited:
			h.limit = max(h.limit, limit)
		}
		h.doubted = min(h.doubted, h.used)
		own[s] = h
	}
	for s, h := range own {
		jobs[s] = jobs[s].add(h)
	}
}

// capacityOf returns the size of a job's device, which is 0 if it is unknown, and whether there is such a device. The
// job's processes write which device it is, and how large. If the driver answers, its word counts instead.
func capacityOf(mc *machine.Machine, d *machine.Device) (bytes uint64, there bool) {
	if len(mc.Devices) == 0 {
		return d.Total, true
	}
	if at := mc.DeviceOf(d); at >= 0 {
		return cmp.Or(mc.Devices[at].Total, d.Total), true
	}
	for i := range mc.Devices { // an instance of a device that is divided, which the driver lists as a whole
		if g := &mc.Devices[i]; g.MIG {
			bytes, there = max(bytes, g.Total), true
		}
	}
	return min(bytes, cmp.Or(d.Total, bytes)), there
}

// firstRead is how long after it was made a job may be read for the first time, on a busy machine.
const firstRead = 10 * time.Second

// noteCounters adds what a job's own counters have counted since the last look. Deaths may be noticed after a job
// has ended. took is the time of a device that a subject had since then: never more than all of it.
func (m *Meter) noteCounters(counts map[counter]counted, took map[Subject]uint64, mc *machine.Machine, j *machine.Job, now time.Time) {
	for n := range j.Devices {
		d := &j.Devices[n]
		is := counted{refused: d.Refused, peak: d.Peak}
		if n == 0 { // a process dies once, on whatever devices
			is.died = j.Died
		}
		if d.Compute != nil {
			is.used, is.inTurn = d.Compute.Used, d.Compute.InTurn
		}
		key := counter{j.ID(), d.Device}
		was, known := m.counts[key]
		if counts[key] = is; m.at.IsZero() || !known && (j.Created.Before(m.first) || j.Created.Before(m.at.Add(-firstRead))) {
			continue // what happened before was counted by an earlier agent, or by none
		}
		more := Sums{Refused: advance(was.refused, is.refused), Died: advance(was.died, is.died)}
		if capacity, there := capacityOf(mc, d); is.peak > was.peak && there { // between two looks
			more.Peak = min(is.peak, cmp.Or(capacity, is.peak))
		}
		if is.used > was.used {
			// More than all of the time since the last look is counted later, as far as it is not too much.
			more.Measured = min(is.used-was.used, uint64(max(0, now.Sub(m.at))))
			counts[key] = counted{is.refused, is.died, max(was.used+more.Measured, is.used-min(is.used, maxLate)), is.inTurn, is.peak}
			if late := m.unpaid[key]; late > 0 {
				m.unpaid[key] = late - min(late, more.Measured)
			}
		}
		if more != (Sums{}) {
			s := m.subject(mc, j, d, now)
			more.Measured = min(more.Measured, uint64(max(0, now.Sub(m.at)))-took[s])
			took[s] += more.Measured
			m.add(s, more)
			if more.Measured > 0 {
				m.worked[s] = true
				m.noteTurns(s, j, d, min(more.Measured, is.inTurn-min(is.inTurn, was.inTurn)))
			}
		}
	}
}

// noteDenied adds the rations that a policy has refused since the last look, for the jobs of all programs of their users.
func (m *Meter) noteDenied(mc *machine.Machine, now time.Time) {
	denied, listed, last := map[int]uint64{}, map[int]uint64{}, map[int]*machine.Denied{}
	for i := range mc.Denied {
		d := &mc.Denied[i]
		denied[d.UID], last[d.UID] = max(denied[d.UID], d.Count), d
		listed[d.UID]++
	}
	for uid, is := range denied {
		was, known := m.denied[uid]
		if !known { // also after so long a time that the list had none of this user
			was = is - min(is, listed[uid])
		}
		if more := advance(was, is); more > 0 && !m.at.IsZero() {
			j, d := jobOfDenied(mc, last[uid])
			m.add(m.subject(mc, &j, &d, now), Sums{Refused: more})
		}
	}
	m.denied = denied
}

// jobOfDenied returns the job of a user who was refused a ration, which need not exist, and the device.
func jobOfDenied(mc *machine.Machine, d *machine.Denied) (j machine.Job, on machine.Device) {
	j, on = machine.Job{Name: d.User, Owner: d.User, UID: d.UID}, machine.Device{Device: d.Device}
	for i := range mc.Jobs {
		if mc.Jobs[i].Path == job.OfUserPath(d.UID) {
			if j = mc.Jobs[i]; d.Device < 0 && len(j.Devices) > 0 {
				on = j.Devices[0]
			}
		}
	}
	for i := range mc.Devices {
		if mc.Devices[i].Device == on.Device {
			on.UUID = mc.Devices[i].UUID
		}
	}
	return j, on
}

// subjectOf returns the account that a job on a device has, or would have if the user had fewer.
func subjectOf(mc *machine.Machine, j *machine.Job, d *machine.Device) Subject {
	s := Subject{UID: j.UID, Owner: j.Owner, Job: j.Title(), Device: d.UUID}
	if _, there := capacityOf(mc, d); !there {
		s.Device = UnknownDevice
	} else if s.Device == "" {
		s.Device = fmt.Sprint(d.Device)
	}
	s.Project = j.Labels[job.Project]
	if s.Project != "" && j.Claimed {
		s.Project += " (claimed)"
	}
	if j.Kubernetes != nil { // which the user cannot choose
		s.Project = j.Kubernetes.Namespace
	}
	return s
}

// membersOf returns the subjects that have accounts of this day, of a user and its subordinate users.
func (m *Meter) membersOf(uid int, now time.Time) (account int, known map[Subject]bool) {
	if day := now.Truncate(24 * time.Hour); !day.Equal(m.day) {
		m.day, m.members, m.others = day, map[int]map[Subject]bool{}, map[int]Subject{}
	}
	account = m.user(uid)
	if known = m.members[account]; known == nil {
		known = map[Subject]bool{}
		m.members[account] = known
	}
	return account, known
}

// hasAccount reports whether there is an account for a job on a device, which may be that of the user's other jobs.
func (m *Meter) hasAccount(mc *machine.Machine, j *machine.Job, d *machine.Device, now time.Time) bool {
	_, known := m.membersOf(j.UID, now)
	return len(known) >= maxSubjects || known[subjectOf(mc, j, d)]
}

// subject returns the account for a job on a device, and takes one if it has none.
func (m *Meter) subject(mc *machine.Machine, j *machine.Job, d *machine.Device, now time.Time) Subject {
	s := subjectOf(mc, j, d)
	account, known := m.membersOf(s.UID, now)
	if !known[s] && len(known) >= maxSubjects {
		s.Job, s.Project = OtherJobs, ""
		if s.UID != account {
			if _, there := m.others[account]; !there {
				m.others[account] = s
			}
			s.UID, s.Owner = m.others[account].UID, m.others[account].Owner
		}
		return s
	}
	known[s] = true
	return s
}

// askedOnce returns a function that returns what account does, and asks it once for each user: it asks the kernel.
func askedOnce(account func(uid int) int) func(uid int) int {
	known := map[int]int{}
	return func(uid int) int {
		user, asked := known[uid]
		if !asked {
			user = account(uid)
			known[uid] = user
		}
		return user
	}
}

// count adds the time between two looks to an account.
func (m *Meter) count(s Subject, was, is held, span time.Duration) {
	m.add(s, Sums{Held: byteSeconds(was.used, span), Reserved: byteSeconds(was.limit, span), Asleep: was.asleep * uint64(span), Peak: max(was.used, is.used),
		Error: saturate(byteSeconds(max(was.used, is.used)-min(was.used, is.used), span), byteSeconds(was.doubted, span))})
}

// add adds to an account of this period.
func (m *Meter) add(s Subject, more Sums) {
	if more == (Sums{}) {
		return // a job that ended before has no line in the report for that
	}
	sums := m.period.Sums[s]
	sums.add(more)
	m.period.Sums[s] = sums
}

// advance returns by how much a counter has advanced.
func advance(was, is uint64) uint64 {
	if is < was { // the job has been made again, or has written another number
		return 0
	}
	return min(is-was, maxCount)
}

// byteSeconds returns bytes times a span.
func byteSeconds(bytes uint64, span time.Duration) uint64 {
	return uint64(float64(bytes) * span.Seconds())
}

// Times adds the device's time that jobs had in a span by the driver's samples, from Holding.Time, and notes which
// jobs worked. What the library has measured is in the job's counter, which Look reads. Work that the driver sees and
// the counter does not have may be of a kernel that has not ended; if that is more than maxLate, the samples count.
func (m *Meter) Times(mc *machine.Machine, span time.Duration, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.user = askedOnce(m.account)
	unpaid, took := map[counter]uint64{}, map[Subject]uint64{}
	for i := range mc.Jobs {
		j := &mc.Jobs[i]
		for n := range j.Devices {
			d := &j.Devices[n]
			sampled, unmeasured, worked, known := timesOf(j, d.Device)
			if !known {
				continue
			}
			had := uint64(sampled * float64(span))
			key := counter{j.ID(), d.Device}
			if late := m.unpaid[key] + uint64(unmeasured*float64(span)); late > 0 {
				unpaid[key] = min(late, maxLate)
				had += late - unpaid[key]
			}
			if had == 0 && !worked && !m.hasAccount(mc, j, d, now) {
				continue // a device that the job has not used takes no account
			}
			s := m.subject(mc, j, d, now)
			m.worked[s] = m.worked[s] || worked
			had = min(had, uint64(max(0, span))-took[s]) // several of the job's devices may claim to be one
			took[s] += had
			m.add(s, Sums{Sampled: had})
		}
	}
	m.unpaid = unpaid
}

// timesOf returns which part of a device's time a job's processes had by the driver's samples, and whether they
// worked. It is known only if it is known of all of them. unmeasured is the part that processes had whose time the library
// measures, if the driver sees more than that.
func timesOf(j *machine.Job, device int) (sampled, unmeasured float64, worked, known bool) {
	known = j.Omitted == nil
	for p := range j.Processes {
		for _, h := range j.Processes[p].Holdings {
			if h.Device != device {
				continue
			}
			if h.Time == nil {
				known = false
				continue
			}
			worked = worked || h.Time.Percent > 0
			if part := min(1, max(0, h.Time.Percent/100)); h.Time.About {
				if j.Measured(device) && h.Compute != nil && h.Compute.Used > 0 {
					unmeasured += part
				} else {
					sampled += part
				}
			}
		}
	}
	return min(1, sampled), min(1, unmeasured), worked, known || worked
}

// Take returns the period until the last look, and begins the next. Memory that was held in it counts as idle
// if the job is known to have done no work. The period's time is its middle: looks are a little before or after the limits
// of a step.
func (m *Meter) Take() Period {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.period
	out.At = out.At.Add(m.at.Sub(out.At) / 2)
	for s, sums := range out.Sums {
		if worked, known := m.worked[s]; known && !worked {
			sums.Idle = sums.Held
			out.Sums[s] = sums
		}
	}
	m.divideShared()
	m.period, m.worked, m.outside, m.turns = Period{At: m.at, Sums: map[Subject]Sums{}}, map[Subject]bool{}, map[string]bool{}, map[Subject]*turns{}
	return out
}

// divideShared removes the turns of others from the measured time of jobs that may not have had their device for
// themselves in this period, as far as these are known. A job for which it is unknown whether it worked may have worked.
func (m *Meter) divideShared() {
	measured, mayWork := map[string][]Subject{}, map[string]int{} // by device
	for s, sums := range m.period.Sums {
		if worked, known := m.worked[s]; worked || !known {
			mayWork[s.Device]++
		}
		if sums.Measured > 0 {
			measured[s.Device] = append(measured[s.Device], s)
		}
	}
	for device, subjects := range measured {
		switch {
		case m.outside[device] || mayWork[device] > len(subjects):
			m.markShared(subjects)
		case len(subjects) > 1:
			m.divide(subjects, m.period.Watched)
		}
	}
}
