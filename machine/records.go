package machine

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

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
// jobs must not have the same identity. If the records are this user's own, it drops a run instead whose command has ended
// and which the service has not removed yet.
func (m *Machine) dropRecords(own bool) {
	if own {
		over := map[JobID]bool{}
		for i := range m.Jobs {
			if j := &m.Jobs[i]; j.ranAs != "" && j.Exit != nil {
				over[j.ID()] = true
			}
		}
		m.Jobs = slices.DeleteFunc(m.Jobs, func(j Job) bool { return j.ranAs == "" && j.State != Running && over[j.ID()] })
	}
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
		switch project := j.Labels[job.Project]; {
		case len(j.Labels) == 0:
			j.Labels, j.Claimed = r.Labels, r.Claimed
		case j.Claimed && len(r.Labels) > 0: // the project stays the one that the run was given with
			j.Labels = maps.Clone(r.Labels)
			j.Labels[job.Project] = project
		}
	}
}

// keepLabels sets the labels of records to those that their runs had in the last scan: the service of the policy has
// checked these, and the records are the users'.
func (m *Machine) keepLabels(before []Job) {
	checked := map[JobID]*Job{}
	for i := range before {
		if j := &before[i]; len(j.Labels) > 0 && !j.Claimed {
			checked[j.ID()] = j
		}
	}
	for i := range m.Jobs {
		if j := &m.Jobs[i]; j.ranAs != "" && checked[j.ID()] != nil {
			j.Labels, j.Claimed = checked[j.ID()].Labels, false
		}
	}
}

// recordGap is how soon a record is looked for again whose user rests.
const recordGap = 100 * time.Millisecond

// readRecords reads the records of runs that have disappeared since the last scan, which say how their commands have
// ended. A record may be in a folder that its user made after the last search for users. The runs that it returns stay in
// the list of jobs: their user's folder is not read yet. None does so for longer than a scan may take.
func (s *scanner) readRecords(now time.Time) (unread []Job) {
	gone := s.gone()
	if len(gone) == 0 {
		s.unread = nil
		return nil
	}
	since := map[JobID]time.Time{}
	began, searched := time.Now(), true
	for i := range gone {
		id := gone[i].ID()
		at, known := s.unread[id]
		searched = searched && known
		if since[id] = at; !known {
			since[id] = began
		}
	}
	if s.unread = since; !searched {
		notes := s.notes // the next search has them again
		s.findUsers()
		s.notes = notes
	}
	var users []*userScan
	for i := range gone {
		if u := s.users[gone[i].UID]; u != nil && !slices.Contains(users, u) {
			users = append(users, u)
		}
	}
	s.gather(users, now, nil, true)
	for _, j := range s.gone() {
		u, noticed := s.users[j.UID], since[j.ID()]
		if u != nil && u.last.read.Before(noticed) && began.Sub(noticed) < s.timeout {
			unread = append(unread, j)
			s.due = earlier(s.due, now.Add(recordGap))
		}
	}
	return unread
}

// gone returns the runs of the last scan that have disappeared, and have no record.
func (s *scanner) gone() (out []Job) {
	var there map[JobID]bool
	for i := range s.base.Jobs {
		j := &s.base.Jobs[i]
		if _, _, is := job.RunOf(filepath.Base(filepath.Dir(j.Path))); !is || j.State == Ended {
			continue
		}
		if there == nil {
			there = s.jobIDs()
		}
		if !there[j.ID()] {
			out = append(out, *j)
		}
	}
	return out
}

// jobIDs returns the identities of all jobs that were read.
func (s *scanner) jobIDs() map[JobID]bool {
	out := map[JobID]bool{}
	for _, u := range s.all() {
		for i := range u.last.jobs {
			out[u.last.jobs[i].ID()] = true
		}
	}
	return out
}
