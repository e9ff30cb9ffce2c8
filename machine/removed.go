package machine

import (
	"os"
	"path/filepath"
	"time"

	"ration/internal/job"
)

// maxRemovedFile bounds the size of the file of removed jobs, in bytes.
const maxRemovedFile = 4 << 20

// ReadRemoved returns the latest jobs that the policy's service removed and that had refusals or deaths, oldest first. Only
// root can.
func ReadRemoved() ([]Job, error) { return job.ReadPolicyFile[Job](job.PolicyRemoved, maxRemovedFile) }

// AddDeaths makes deaths of the dead processes whose memory was not returned to the job. noticed is as Death.Noticed.
func (j *Job) AddDeaths(now time.Time, noticed string) {
	for i := range j.Processes {
		p := &j.Processes[i]
		if p.State != Dead || p.Lent { // the death of one that has lent memory is recorded
			continue
		}
		held, asleep := []DeathHeld{}, false
		for _, h := range p.Holdings {
			if bytes := h.Total + h.Aside; bytes > 0 { // one of them is 0
				held, asleep = append(held, DeathHeld{h.Device, bytes}), asleep || h.Aside > 0
			}
		}
		j.Deaths = append([]Death{{now.UTC(), p.Slot, p.PID, p.HostPID, p.Name, p.Joined, os.Getpid(), noticed, asleep, held}}, j.Deaths...)
		j.Died++
	}
	j.Processes = []Process{}
}

// readRemoved reads the removed jobs, if the file has changed, and adds those that are not there. It reports whether the
// file has changed.
func (s *scanner) readRemoved(m *Machine) (changed bool) {
	if !s.allUsers() {
		return false
	}
	st, err := os.Lstat(filepath.Join(job.RootFolder, job.PolicyRemoved))
	if err == nil && (s.removedFile == nil || !os.SameFile(st, s.removedFile)) { // each change is a new file
		if all, err := ReadRemoved(); err == nil {
			s.removedFile, s.removed, changed = st, all, true
		}
	}
	if len(s.removed) == 0 {
		return changed
	}
	there := map[JobID]bool{}
	for i := range m.Jobs {
		there[m.Jobs[i].ID()] = true
	}
	for i := range s.removed {
		if !there[s.removed[i].ID()] { // one that is there was not removed, or is about to be
			m.Removed = append(m.Removed, s.removed[i])
		}
	}
	return changed
}
