package machine

import (
	"path/filepath"
	"slices"

	"ration/internal/job"
)

// Under a policy a user's run is a job of root's. The user's ration run keeps a record of its command in the user's
// own folder: a job without a region, with the path of the region that counts it (Job.countedIn).

// records returns the user's records.
func (s *userState) records() (out []Job) {
	for _, t := range s.jobs {
		if t.known && !t.shown && t.job.countedIn != "" {
			out = append(out, t.job)
		}
	}
	return out
}

// addRecords adds to the runs of a policy what their users have recorded of them: the command and labels.
func (m *Machine) addRecords(records []Job) {
	for i := range records {
		r := &records[i]
		at := slices.IndexFunc(m.Jobs, func(j Job) bool { return j.Path == r.countedIn })
		if _, is := job.UserOf(filepath.Base(filepath.Dir(r.countedIn))); at < 0 || is {
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
