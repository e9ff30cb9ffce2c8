package policy

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	"ration/internal/job"
	"ration/internal/safepath"
	"ration/machine"
)

// What the regions of removed jobs said is kept for the latest jobs of each user. The others have been read, if an agent
// runs.
const (
	maxRemovedOf = 4
	maxRemoved   = 128
	maxLast      = 16 // refusals, and deaths, of each
)

// keepLast keeps the last refusals and deaths of a job that is about to be removed: an agent may not have read them yet. The
// caller holds the lock of lockJobs.
func keepLast(uid int, now time.Time) error {
	j, err := machine.ReadJob(job.OfUserPath(uid))
	if err != nil {
		return err
	}
	j.AddDeaths(now, "its lock was gone when the policy took its ration back")
	if len(j.Deaths) == 0 && len(j.Refusals) == 0 {
		return nil
	}
	j.State, j.Ended = machine.Idle, now // its end is the removal
	j.Deaths, j.Refusals = j.Deaths[:min(len(j.Deaths), maxLast)], j.Refusals[:min(len(j.Refusals), maxLast)]
	all, _ := machine.ReadRemoved() // a file that cannot be read is replaced
	text, err := json.Marshal(withRemoved(all, j))
	if err != nil {
		return err
	}
	return safepath.Replace(filepath.Join(job.RootFolder, job.PolicyRemoved), text, 0o600)
}

// withRemoved returns the jobs with one more, which may be in the list because it was not removed then.
func withRemoved(all []machine.Job, j machine.Job) []machine.Job {
	all = append(slices.DeleteFunc(all, func(was machine.Job) bool { return was.ID() == j.ID() }), j)
	of := 0
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].UID != j.UID {
			continue
		}
		if of++; of > maxRemovedOf {
			all = slices.Delete(all, i, i+1)
		}
	}
	return all[max(0, len(all)-maxRemoved):]
}
