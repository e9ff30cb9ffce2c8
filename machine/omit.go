package machine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/proc"
)

// A user can have thousands of regions, and one process can fill all slots, refusals and deaths of each. So
// a scan keeps a bounded part of each user's jobs, whatever is in the regions, and counts the rest
// (Job.Omitted). A job that is read alone is whole, and so are the jobs in this user's own folder.
const (
	userRows  = 8192 // processes and their holdings, of all jobs of a user
	userTexts = 2048 // refusals and deaths, of all jobs of a user
	// Each job has so many beside these: a process, a refusal and a death.
	jobRows  = 1 + abi.Devices
	jobTexts = 2
)

// Omitted counts what is left out of a job, as the jobs of its user hold very much. ReadJob returns all.
type Omitted struct {
	Processes int `json:"processes"` // those that hold least
	Dead      int `json:"dead"`      // of these processes
	Refusals  int `json:"refusals"`  // the oldest
	Deaths    int `json:"deaths"`    // the oldest
}

// ProcessCount returns how many processes the job has, with omitted ones.
func (j *Job) ProcessCount() int {
	if j.Omitted == nil {
		return len(j.Processes)
	}
	return len(j.Processes) + j.Omitted.Processes
}

// LivingCount returns how many processes of the job are not dead, with omitted ones.
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

// hostPIDs returns the PIDs on the host of the verified processes, with omitted ones unless the job was
// decoded from JSON.
func (j *Job) hostPIDs() []int {
	out := slices.Clone(j.omittedPIDs)
	for i := range j.Processes {
		if p := &j.Processes[i]; p.Verified && p.HostPID != 0 {
			out = append(out, p.HostPID)
		}
	}
	return out
}

// Shorten returns the job with no more processes than fit into so many rows. A process takes one row, and
// one for each holding. Verified processes come first, and of these the ones that hold most.
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
	pids, processes := slices.Clone(j.omittedPIDs), []Process{} // new ones, to free the memory of the rest
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
		if p.Verified && p.HostPID != 0 && !known[p.HostPID] { // one process may have all slots
			known[p.HostPID] = true
			pids = append(pids, p.HostPID)
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

// quota bounds what is kept of all jobs of one user. A nil quota has no bounds.
type quota struct {
	turn sync.Mutex  // held while one of the user's regions is read: each is copied, and is large
	left func() bool // whether there is time to count what is not kept; nil: always

	mu sync.Mutex
	used
}

// used is what one job, or all, use of a quota beside each job's own part. A quota's is under its mu.
type used struct{ rows, texts int }

// cut cuts a job to what is left of the quota, and returns what the job uses of it. before is what an
// earlier read of the job used.
func (q *quota) cut(j *Job, before used) (has used) {
	if q == nil {
		return used{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rows, q.texts = q.rows-before.rows, q.texts-before.texts
	*j = j.Shorten(jobRows + userRows - q.rows)
	has.rows = max(0, rowsOf(j.Processes...)-jobRows)
	q.rows += has.rows
	refusals, deaths := len(j.Refusals), len(j.Deaths)
	if most := jobTexts + userTexts - q.texts; refusals+deaths > most {
		// Keep some of both: many refusals must not hide the deaths.
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

// giveBack is cut for a job of which nothing is kept any more.
func (q *quota) giveBack(before used) { q.cut(&Job{}, before) }

// isSpent reports whether nothing more need be read of a user: nothing of it would be kept, and the time
// to count the rest is over.
func (q *quota) isSpent() bool {
	if q == nil || q.left == nil || q.left() {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows+jobRows > userRows || q.texts+jobTexts > userTexts
}

// addFloods adds a finding for each user whose jobs are not shown whole.
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

// addFinding adds a finding unless it is there: a user could cause any number of equal ones.
func (m *Machine) addFinding(f Finding) {
	if !slices.Contains(m.Findings, f) {
		m.Findings = append(m.Findings, f)
	}
}
