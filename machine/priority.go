package machine

import (
	"fmt"
	"iter"
	"path/filepath"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// readPriority finds out whether the job's priority has an effect on its processes, as far as its region says.
func (j *Job) readPriority(r *region.Region) error {
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if j.Priority == "" || p.State == Dead || h.Context == 0 {
				continue
			}
			c, err := r.ProcessCompute(h.Device, p.Slot)
			if err != nil {
				return err
			}
			switch state := c.Slice.State(); {
			case p.mps:
				j.NoPriority = fmt.Sprintf("pid %d is a client of MPS, where time slices have no effect", p.PID)
			case state == abi.SliceNone:
				j.NoPriority = fmt.Sprintf("pid %d was started while the job had normal priority (start it again)", p.PID)
			case state != abi.SliceReady && state != abi.SliceKept:
				j.NoPriority = fmt.Sprintf("pid %d: %s", p.PID, c.NotEnforced())
			}
			if j.NoPriority != "" {
				return nil
			}
		}
	}
	return nil
}

// addPriorities finds the jobs whose priority has no effect because of other jobs: there is none that it is for, or a process
// slows down the locks by which they know of each other. That is looked for only once, because it may take a second. The
// machine has the jobs of all users.
func (m *Machine) addPriorities(once bool) {
	suspended := ""
	if once && slices.ContainsFunc(m.Jobs, func(j Job) bool { return j.hasPriority() }) {
		suspended = prioritiesSuspended(job.PriorityFlood)
	}
	type use struct{ priority, uuid string }
	uses := map[use]bool{} // not each job compared with each other: a user can have thousands, with any claims
	for i := range m.Jobs {
		if j := &m.Jobs[i]; j.hasPriority() {
			for uuid := range j.heldDevices() {
				uses[use{j.Priority, uuid}] = true
			}
		}
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if !j.hasPriority() || j.NoPriority != "" {
			continue
		}
		opposite := map[string]string{"high": "low", "low": "high"}[j.Priority]
		beside := false
		for uuid := range j.heldDevices() {
			beside = beside || uses[use{opposite, uuid}]
		}
		switch {
		case suspended != "":
			j.NoPriority = suspended
		case !beside:
			j.NoPriority = fmt.Sprintf("no job of %s priority uses a GPU with it", opposite)
		}
	}
}

// prioritiesSuspended returns why no priority has an effect now; empty if each may have one.
func prioritiesSuspended(flood func(path string) (pid int, holds string, err error)) string {
	for _, path := range []string{filepath.Join(job.RootFolder, job.PriorityFile), job.SharedPriorityFile} {
		switch pid, holds, err := flood(path); {
		case err != nil || pid == 0:
		case pid < 0:
			return fmt.Sprintf("priorities are suspended while a process holds %s on %s", holds, path)
		default:
			return fmt.Sprintf("priorities are suspended while pid %d holds %s on %s", pid, holds, path)
		}
	}
	return ""
}

// hasPriority reports whether the job has a priority and uses a device.
func (j *Job) hasPriority() bool {
	return j.Priority != "" && j.State == Running && j.Sleep == "" && slices.ContainsFunc(j.Devices, func(d Device) bool { return d.Used > 0 })
}

// heldDevices returns the UUIDs of the devices of which the job holds memory.
func (j *Job) heldDevices() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range j.Devices {
			if d := &j.Devices[i]; d.Used > 0 && d.UUID != "" && !yield(d.UUID) {
				return
			}
		}
	}
}

// PrioritySentence says which priority the job has, and why it has no effect now. It is empty for normal priority.
func (j *Job) PrioritySentence() string {
	switch {
	case j.Priority == "":
		return ""
	case j.NoPriority == "":
		return j.Priority + " priority"
	}
	return j.Priority + " priority, without effect now: " + j.NoPriority
}
