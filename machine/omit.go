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

// A user can have thousands of regions, each with all slots taken, all refusals and all deaths
// written, by one process with many locks. What a look at the whole machine keeps of one user is
// bounded, whatever is in the regions: the rest is counted (Job.Omitted). A job that is read by
// itself is whole, and so are those in this user's own folder of jobs.
const (
	userRows  = 8192 // processes, and what they hold of each device, of all jobs of a user
	userTexts = 2048 // refusals and deaths, of all jobs of a user
	// Beside these, each job has so many of its own: one process, a refusal and a death.
	jobRows  = 1 + abi.Devices
	jobTexts = 2
)

// Omitted counts what a look at the whole machine has left out of a job of another user, since
// that user's jobs have very much. A look at that job alone has all of it.
type Omitted struct {
	Processes int `json:"processes"` // those that hold least
	Dead      int `json:"dead"`      // of these processes
	Refusals  int `json:"refusals"`  // the oldest
	Deaths    int `json:"deaths"`    // the oldest
}

// ProcessCount returns how many processes the job has, with those that are Omitted.
func (j *Job) ProcessCount() int {
	if j.Omitted == nil {
		return len(j.Processes)
	}
	return len(j.Processes) + j.Omitted.Processes
}

// LivingCount returns how many processes the job has that are not dead, with those that are Omitted.
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

// HostPIDs returns the PIDs on the host of the processes that are in the job by the kernel's word,
// with those that are Omitted, unless the job was decoded from JSON.
func (j *Job) HostPIDs() []int {
	out := slices.Clone(j.omittedPIDs)
	for i := range j.Processes {
		if p := &j.Processes[i]; p.Verified && p.HostPID != 0 {
			out = append(out, p.HostPID)
		}
	}
	return out
}

// allowance is what is kept of all jobs of one user. A nil one is without bounds.
type allowance struct {
	turn sync.Mutex  // held while one of the user's regions is read: each is copied, and that is much
	left func() bool // whether there is time to count what is not kept; nil where there is

	mu          sync.Mutex
	rows, texts int // under mu: that are kept, but for those that each job has of its own
}

// kept is what one job has of an allowance, beside its own.
type kept struct{ rows, texts int }

func rowsOf(p *Process) int { return 1 + len(p.Holdings) }

func rowsOfAll(all []Process) (n int) {
	for i := range all {
		n += rowsOf(&all[i])
	}
	return n
}

// cut cuts a job to what is left of the allowance, and returns what it has of it. A job that was
// kept before gives that back first.
func (a *allowance) cut(j *Job, before kept) (has kept) {
	if a == nil {
		return kept{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rows, a.texts = a.rows-before.rows, a.texts-before.texts
	var out Omitted
	rows := rowsOfAll(j.Processes)
	if most := jobRows + userRows - a.rows; rows > most {
		out.Processes, out.Dead = j.omitProcesses(most)
		rows = rowsOfAll(j.Processes)
	}
	has.rows = max(0, rows-jobRows)
	a.rows += has.rows
	refusals, deaths := len(j.Refusals), len(j.Deaths)
	if most := jobTexts + userTexts - a.texts; refusals+deaths > most {
		// Of both, so that many of one do not hide the other.
		deaths = min(deaths, max(most/2, most-refusals))
		refusals = min(refusals, most-deaths)
		out.Refusals, out.Deaths = len(j.Refusals)-refusals, len(j.Deaths)-deaths
		j.Refusals, j.Deaths = slices.Clone(j.Refusals[:refusals]), slices.Clone(j.Deaths[:deaths])
	}
	has.texts = max(0, refusals+deaths-jobTexts)
	a.texts += has.texts
	if out != (Omitted{}) {
		j.Omitted = &out
	}
	return has
}

// spent reports whether nothing more need be read of a user: nothing of it would be kept, and it
// has been counted for long enough.
func (a *allowance) spent() bool {
	if a == nil || a.left == nil || a.left() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rows+jobRows > userRows || a.texts+jobTexts > userTexts
}

// newAllowance is for one look at the machine.
func newAllowance() *allowance { return &allowance{left: patienceForAll().Left} }

// giveBack is cut of a job of which nothing is kept any more.
func (a *allowance) giveBack(before kept) { a.cut(&Job{}, before) }

// omitProcesses keeps the processes that an operator would ask for first, in the order that they
// had, and returns how many it left out, and how many of these are dead: those that the kernel confirms, and which hold most.
func (j *Job) omitProcesses(rows int) (omitted, dead int) {
	keep := LargestProcesses(j.Processes, rows)
	known := map[int]bool{}
	for i := range j.Processes {
		p := &j.Processes[i]
		if !keep[i] && p.Verified && p.HostPID != 0 && !known[p.HostPID] { // one may have all slots
			known[p.HostPID] = true
			j.omittedPIDs = append(j.omittedPIDs, p.HostPID)
		}
	}
	var out []Process // a new one: the rest must not be kept in memory
	for i, p := range j.Processes {
		if keep[i] {
			out = append(out, p)
		} else if p.State == Dead {
			dead++
		}
	}
	omitted = len(j.Processes) - len(out)
	j.Processes = append([]Process{}, out...)
	return omitted, dead
}

// LargestProcesses says, by their indices, which of the processes are worth so many rows, of which
// a process has one and one for each holding: those that the kernel confirms come first, and of
// these those that hold most.
func LargestProcesses(all []Process, rows int) map[int]bool {
	order, held := make([]int, len(all)), make([]uint64, len(all))
	for i := range all {
		order[i] = i
		for _, h := range all[i].Holdings {
			held[i] += min(h.Total, ^held[i])
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if all[a].Verified != all[b].Verified {
			if all[a].Verified {
				return -1
			}
			return 1
		}
		return cmp.Compare(held[b], held[a])
	})
	keep := map[int]bool{}
	for _, i := range order {
		if rows -= rowsOf(&all[i]); rows < 0 {
			break
		}
		keep[i] = true
	}
	return keep
}

// addFloods adds a finding for each user of whose jobs something was left out.
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

// addFinding adds a finding unless the same is there: a user could make any number of them.
func (m *Machine) addFinding(f Finding) {
	if !slices.Contains(m.Findings, f) {
		m.Findings = append(m.Findings, f)
	}
}
