// Package reap reads jobs for the commands of ration: as package machine does, and
// where a region is this user's alone, it first returns what dead processes hold to the job.
package reap

import (
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/region"
	"ration/machine"
)

// Options say how to read.
type Options struct {
	ReadOnly bool // leave every region as it is
	// Full says which jobs are wanted whole, whatever else their users have: those of which a look
	// at the whole machine left something out are read by themselves. nil is none.
	Full func(j *machine.Job) bool
}

// Read is machine.Read.
func Read(opts Options) (machine.Machine, error) {
	m, err := machine.Read()
	for i := range m.Jobs {
		if j := &m.Jobs[i]; j.Omitted != nil && opts.Full != nil && opts.Full(j) {
			name := j.Name
			*j, _ = machine.ReadRegion(j.Path) // its Err returns the error
			j.Name = name
		}
		reap(&m.Jobs[i], opts)
	}
	return m, err
}

// ReadJob is machine.ReadJob of a job that has been found.
func ReadJob(j job.Job, opts Options) machine.Job {
	out, _ := machine.ReadRegion(j.Path) // its Err returns the error
	out.Name = j.Name
	reap(&out, opts)
	return out
}

// Return returns what dead processes hold to a job, where its region is this user's alone, and lets it
// write down host PIDs. It reads nothing for people: who keeps the files of a process that is ending is
// a question to every process of the machine.
func Return(path string) error {
	r, err := region.OpenMapped(path) // only if it is complete: one that is being made is not to be made by this
	if err != nil {
		return err
	}
	r.Close()
	if !own(path) {
		return nil
	}
	_, err = reapRegion(path)
	return err
}

// reap returns what dead processes hold, if there are any, and reads the job again.
// It also lets the region write down the host PIDs that this process sees: a process
// in a container needs its own to find itself in the driver's list.
func reap(j *machine.Job, opts Options) {
	if opts.ReadOnly || j.Err() != nil || !own(j.Path) {
		return
	}
	dead := slices.DeleteFunc(slices.Clone(j.Processes), func(p machine.Process) bool { return p.State != machine.Dead })
	foreign := slices.ContainsFunc(j.Processes, func(p machine.Process) bool { return p.HostPID != p.PID })
	if j.ReadOnly = false; len(dead) == 0 && !foreign {
		return
	}
	n, err := reapRegion(j.Path)
	if err != nil {
		j.ReadOnly = true // the dead are shown as what they are
		return
	}
	if n == 0 {
		return
	}
	after, err := machine.ReadRegion(j.Path)
	if after.Name, after.ReadOnly = j.Name, false; err == nil {
		after.Reaped = dead
	}
	*j = after
}

// own reports whether a region is this user's alone. What others can write is only
// read: to reap is to map the file and to follow what it says.
func own(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Uid == uint32(unix.Geteuid()) && st.Mode&0o022 == 0
}

func reapRegion(path string) (n int, err error) {
	r, err := region.Open(path, region.Options{NoCreate: true})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if _, err := r.Processes(); err != nil { // writes host PIDs down
		return 0, err
	}
	return r.Reap()
}
