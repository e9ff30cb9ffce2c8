package machine

import (
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/termtext"
)

// nameUnread names the regions that processes in no job of m have locked: jobs in folders that this scan does not read. An
// ordinary user's scan, or one with RATION_DIR, lists only its own user's processes as Outside, so nobody can hide in it
// from anyone else. Root's scan of all users has read every locked region, and takes no lock as an excuse.
func (m *Machine) nameUnread() {
	if job.AllUsers() || !slices.ContainsFunc(m.Outside, Outside.isReported) {
		return
	}
	deadline, stop := within(lockTimeout)
	defer stop()
	files, _, _ := job.LockedFiles(deadline) // without them, no region is named
	for _, f := range files {
		for i := range m.Outside {
			o := &m.Outside[i]
			if !o.isReported() || o.Region != "" || !slices.Contains(f.PIDs, o.PID) {
				continue
			}
			dir, _, path, err := job.LockedFile{ID: f.ID, PIDs: []int{o.PID}}.OpenFolder()
			if err == nil {
				_ = unix.Close(dir)
				o.Region = termtext.Printable(path)
			}
		}
	}
	// A process may have joined a job of m after the scan read that job.
	m.Outside = slices.DeleteFunc(m.Outside, func(o Outside) bool {
		return o.Region != "" && slices.ContainsFunc(m.Jobs, func(j Job) bool { return termtext.Printable(j.Path) == o.Region })
	})
}

// isReported reports whether the process holds enough to be a finding.
func (o Outside) isReported() bool { return o.Used >= minOutside }
