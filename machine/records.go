package machine

import (
	"path/filepath"
	"slices"

	"ration/internal/job"
)

// Under a policy a user's run is a job of root's. The user's ration run keeps a record of its command in the user's
// own folder: a job without a region, with the path of the region that counts it (Job.countedIn). When the command has
// ended, ration run copies the region there, and the record is an ended job with the name and identity of the run.

// records returns the user's records.
func (s *userState) records() (out []Job) {
	for _, t := range s.jobs {
		if t.known && !t.shown && t.job.countedIn != "" {
			out = append(out, t.job)
		}
	}
	return out
}

// runOfRecord returns the path of the run whose record this job is, or "". That it is one is a claim of its user, who
// may claim the user's own runs.
func (j *Job) runOfRecord() string {
	folder := filepath.Dir(j.countedIn)
	uid, run, is := job.RunOf(filepath.Base(folder))
	if !is || uid != j.UID || run != filepath.Base(filepath.Dir(j.Path)) || j.countedIn != job.RunPath(uid, run) {
		return ""
	}
	return j.countedIn
}

// setName sets the name by which people know the job. name is that of its folder.
func (j *Job) setName(name string) { j.Name = job.ShownName(name, j.ID().Path) }

// dropRecords drops the records of runs that are still there, or that an earlier job in the list is a record of: two
// jobs must not have the same identity.
func (m *Machine) dropRecords() {
	there := map[string]bool{}
	for i := range m.Jobs {
		if m.Jobs[i].ranAs == "" {
			there[m.Jobs[i].Path] = true
		}
	}
	m.Jobs = slices.DeleteFunc(m.Jobs, func(j Job) bool {
		drop := j.ranAs != "" && there[j.ranAs]
		there[j.ID().Path] = true
		return drop
	})
}

// addRecords adds to the runs of a policy what their users have recorded of them: the command and labels.
func (m *Machine) addRecords(records []Job) {
	if len(records) == 0 {
		return
	}
	index := make(map[string]int, len(m.Jobs)) // by path
	for i := range m.Jobs {
		if _, known := index[m.Jobs[i].Path]; !known {
			index[m.Jobs[i].Path] = i
		}
	}
	for i := range records {
		r := &records[i]
		at, there := index[r.countedIn]
		if _, is := job.UserOf(filepath.Base(filepath.Dir(r.countedIn))); !there || is {
			continue // all programs of the user are in that job
		}
		j := &m.Jobs[at]
		if len(j.Command) > 0 || r.Launcher != j.Owner {
			continue
		}
		j.Command, j.Launcher, j.Started = r.Command, r.Launcher, r.Started
		if len(j.Labels) == 0 {
			j.Labels, j.Claimed = r.Labels, r.Claimed
		}
	}
}
