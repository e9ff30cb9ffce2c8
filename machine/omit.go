package machine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/proc"
)

// A user can have thousands of regions, and one process can fill all slots, refusals and deaths of
// each. So a scan keeps a bounded part of each user's jobs, whatever the regions contain, and
// counts the rest (Job.Omitted). Nothing is left out of a job that is read alone, nor of the jobs
// in this user's own folder.
const (
	userRows  = 8192 // at most so many processes and their holdings, for all jobs of a user together
	userTexts = 2048 // at most so many refusals and deaths, for all jobs of a user together
	// So many users can have that much. More users share it.
	fullUsers = 8
	// Beyond these, each job may have one process, one refusal and one death.
	jobRows  = 1 + abi.Devices
	jobTexts = 2
)

// Omitted counts the parts of a job that were left out, because the jobs of its user are very
// large. ReadJob returns all parts.
type Omitted struct {
	Processes int `json:"processes"` // those that hold the least
	Dead      int `json:"dead"`      // dead processes among them
	Refusals  int `json:"refusals"`  // the oldest ones
	Deaths    int `json:"deaths"`    // the oldest ones
}

// ProcessCount returns the number of the job's processes, including omitted ones.
func (j *Job) ProcessCount() int {
	if j.Omitted == nil {
		return len(j.Processes)
	}
	return len(j.Processes) + j.Omitted.Processes
}

// LivingCount returns the number of the job's processes that are not dead, including omitted ones.
func (j *Job) LivingCount() (n int) {
	for i := range j.Processes {
		if j.Processes[i].State != Dead {
			n++
		}
	}
	if j.Omitted != nil {
		n += j.Omitted.Processes - j.Omitted.Dead
	}
	return n
}

// driverPIDs returns the PIDs by which the driver lists the verified processes. It includes omitted
// ones, unless the job was decoded from JSON.
func (j *Job) driverPIDs() []int {
	out := slices.Clone(j.omittedPIDs)
	for i := range j.Processes {
		if p := &j.Processes[i]; p.Verified && p.driverPID() != 0 {
			out = append(out, p.driverPID())
		}
	}
	return out
}

// Shorten returns the job with as many processes as fit into the given number of rows. A process
// takes one row, and one row for each holding. Verified processes come first, and among them those
// that hold most.
func (j Job) Shorten(rows int) Job {
	if rowsOf(j.Processes...) <= rows {
		return j
	}
	order := make([]int, len(j.Processes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		p, q := &j.Processes[a], &j.Processes[b]
		if p.Verified != q.Verified {
			if p.Verified {
				return -1
			}
			return 1
		}
		return cmp.Compare(q.Held(), p.Held())
	})
	keep := map[int]bool{}
	for _, i := range order {
		if rows -= rowsOf(j.Processes[i]); rows < 0 {
			break
		}
		keep[i] = true
	}
	var out Omitted
	if j.Omitted != nil {
		out = *j.Omitted
	}
	known := map[int]bool{}
	pids, processes := slices.Clone(j.omittedPIDs), []Process{} // a new slice frees the memory of the omitted processes
	for i := range j.Processes {
		p := &j.Processes[i]
		if keep[i] {
			processes = append(processes, *p)
			continue
		}
		out.Processes++
		if p.State == Dead {
			out.Dead++
		}
		if pid := p.driverPID(); p.Verified && pid != 0 && !known[pid] { // one process may have several slots
			known[pid] = true
			pids = append(pids, pid)
		}
	}
	j.Processes, j.omittedPIDs, j.Omitted = slices.Clip(processes), pids, &out
	return j
}

func rowsOf(all ...Process) (n int) {
	for i := range all {
		n += 1 + len(all[i].Holdings)
	}
	return n
}

// quota bounds how much is kept of all jobs of one user. A nil quota has no bounds.
type quota struct {
	turn sync.Mutex  // held while one of the user's regions is read, because each copy is large
	left func() bool // whether there is time left to count omitted parts; nil means always

	mu sync.Mutex
	used
	users   int // among how many the memory is divided
	resting int // among how many the processor time is divided: those that have used up theirs
	// When the user's jobs may be scanned again, and when they may be scanned for deaths.
	scans, deaths time.Time
}

// divideQuotas sets among how many users the memory and the time are divided.
func divideQuotas(all map[int]*quota, now time.Time) {
	resting := 0
	for _, q := range all {
		q.mu.Lock()
		if now.Before(q.scans) || now.Before(q.deaths) {
			resting++
		}
		q.mu.Unlock()
	}
	for _, q := range all {
		q.mu.Lock()
		q.users, q.resting = len(all), resting
		q.mu.Unlock()
	}
}

// most returns how much all jobs of the user may have. The lock is held.
func (q *quota) most() used {
	n := max(q.users, fullUsers)
	return used{userRows * fullUsers / n, userTexts * fullUsers / n}
}

// used is the part of a quota that one job uses, or all jobs together, beyond each job's own
// allowance. In a quota it is guarded by mu.
type used struct{ rows, texts int }

// cut shortens a job to what the quota has left, and returns how much of the quota the job uses.
// before is how much an earlier read of the job used.
func (q *quota) cut(j *Job, before used) (has used) {
	if q == nil {
		return used{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rows, q.texts = q.rows-before.rows, q.texts-before.texts
	*j = j.Shorten(max(jobRows, jobRows+q.most().rows-q.rows))
	has.rows = max(0, rowsOf(j.Processes...)-jobRows)
	q.rows += has.rows
	refusals, deaths := len(j.Refusals), len(j.Deaths)
	if most := max(jobTexts, jobTexts+q.most().texts-q.texts); refusals+deaths > most {
		// Keep some of both, so that many refusals do not hide the deaths.
		deaths = min(deaths, max(most/2, most-refusals))
		refusals = min(refusals, most-deaths)
		if j.Omitted == nil {
			j.Omitted = &Omitted{}
		}
		j.Omitted.Refusals, j.Omitted.Deaths = len(j.Refusals)-refusals, len(j.Deaths)-deaths
		j.Refusals, j.Deaths = slices.Clone(j.Refusals[:refusals]), slices.Clone(j.Deaths[:deaths])
	}
	has.texts = max(0, refusals+deaths-jobTexts)
	q.texts += has.texts
	return has
}

// giveBack releases the quota of a job that is not kept any more.
func (q *quota) giveBack(before used) { q.cut(&Job{}, before) }

// isSpent reports whether reading more of a user's jobs is useless: nothing more would be kept, and
// there is no time left to count it.
func (q *quota) isSpent() bool {
	if q == nil || q.left == nil || q.left() {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows+jobRows > q.most().rows || q.texts+jobTexts > q.most().texts
}

// addFloods adds a finding for each user whose jobs are shortened.
func (m *Machine) addFloods() {
	type flood struct {
		Omitted
		jobs int
	}
	byUser := map[int]flood{}
	for i := range m.Jobs {
		if o := m.Jobs[i].Omitted; o != nil {
			f := byUser[m.Jobs[i].UID]
			f.jobs++
			f.Processes, f.Refusals, f.Deaths = f.Processes+o.Processes, f.Refusals+o.Refusals, f.Deaths+o.Deaths
			byUser[m.Jobs[i].UID] = f
		}
	}
	var uids []int
	for uid := range byUser {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	for _, uid := range uids {
		f := byUser[uid]
		m.Findings = append(m.Findings, Finding{Kind: Flood, Device: -1,
			Text: fmt.Sprintf("the jobs of user %s have more in them than is shown: of %s, %s, %s and %s are left out", proc.UserName(uid),
				humanfmt.Plural(f.jobs, "job", "jobs"), humanfmt.Plural(f.Processes, "process", "processes"),
				humanfmt.Plural(f.Refusals, "refusal", "refusals"), humanfmt.Plural(f.Deaths, "death", "deaths")),
			Remedy: "ration ps JOB shows one job in full; if these are not real, the user fills the files of the jobs"})
	}
}

// addFinding adds a finding, unless an equal one exists: a user could cause any number of them.
func (m *Machine) addFinding(f Finding) {
	f = f.printable()
	if !slices.Contains(m.Findings, f) {
		m.Findings = append(m.Findings, f)
	}
}
