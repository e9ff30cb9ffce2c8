// Package node reads the machine for the commands of ration and for the agent: as package machine does, and
// more. Commands return what dead processes hold to their jobs when they read them, keep the driver open
// between two reads, and measure how much of a device's time each process had.
package node

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/scan"
	"ration/machine"
)

// Scanner is package machine's scanner.
type Scanner = scan.Scanner[machine.Machine, machine.Event]

// NewScanner returns a scanner.
func NewScanner(opts scan.Options) Scanner { return scan.New.(func(scan.Options) Scanner)(opts) }

// Options say how to read.
type Options struct {
	ReadOnly bool // leave every region as it is
	// Full says which jobs are wanted whole: those that are not (machine.Omitted) are read again, each
	// alone. nil is none.
	Full func(j *machine.Job) bool
}

// scan returns the options of a scanner.
func (o Options) scan(driver *gpu.Session) scan.Options {
	out := scan.Options{Once: true, Driver: driver, Reap: reapRegion}
	if o.ReadOnly {
		out.Reap = nil
	}
	return out
}

// Reader reads the machine again and again, and keeps the driver open in between. One goroutine may use it.
// Its zero value is ready.
type Reader struct {
	session gpu.Session
	meter   meter
}

// Close ends the use of the driver.
func (r *Reader) Close() { r.session.Close() }

// Read reads the machine. The error says why the jobs could not be listed.
func (r *Reader) Read(opts Options) (machine.Machine, error) { return read(opts, &r.session) }

// ReadJob reads one job, with what the driver counts for it. Processes outside of jobs are not known then.
func (r *Reader) ReadJob(j job.Job, opts Options) machine.Machine {
	return readJob(j, opts, &r.session)
}

// AddTimes adds to each holding how much of the device's time its process had lately, where that is known
// by now.
func (r *Reader) AddTimes(jobs []machine.Job, now time.Time) {
	var samples sampler
	var devices []gpu.Device
	if d, err := r.session.Driver(); err == nil {
		samples, devices = d, d.Devices
	}
	r.meter.add(samples, devices, jobs, now)
}

// Read is Reader.Read, once.
func Read(opts Options) (machine.Machine, error) {
	var r Reader
	defer r.Close()
	return r.Read(opts)
}

// Jobs reads the jobs and leaves them as they are. It does not ask the driver, as that takes some 50 ms.
func Jobs() (machine.Machine, error) { return read(Options{ReadOnly: true}, nil) }

func read(opts Options, driver *gpu.Session) (machine.Machine, error) {
	s := NewScanner(opts.scan(driver))
	defer s.Close()
	r, err := s.Scan(true)
	for i := range r.Machine.Jobs {
		if j := &r.Machine.Jobs[i]; j.Omitted != nil && opts.Full != nil && opts.Full(j) {
			*j = readJob(job.Job{Name: j.Name, Path: j.Path}, opts, driver).Jobs[0]
		}
	}
	return *r.Machine, err
}

// ReadJob reads a job that has been found. Its Err returns why it could not be read.
func ReadJob(j job.Job, opts Options) machine.Job { return readJob(j, opts, nil).Jobs[0] }

func readJob(j job.Job, opts Options, driver *gpu.Session) machine.Machine {
	o := opts.scan(driver)
	o.Only, o.Name = j.Path, j.Name
	s := NewScanner(o)
	defer s.Close()
	r, _ := s.Scan(true) // Job.Err has the error
	return *r.Machine
}

// Return returns what dead processes hold to a job, if no other user can write its region, and writes down
// host PIDs. It does not read the job.
func Return(path string) error {
	r, err := region.OpenMapped(path) // only if it is complete: Return must not make a region
	if err != nil {
		return err
	}
	r.Close()
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0 {
		return nil
	}
	_, err = reapRegion(path)
	return err
}

// reapRegion maps a region and returns what dead processes hold. Whoever maps a region follows what it
// says, so the caller has checked that no other user can write it.
func reapRegion(path string) (n int, err error) {
	r, err := region.Open(path, region.Options{NoCreate: true})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if _, err := r.Processes(); err != nil { // writes down host PIDs
		return 0, err
	}
	return r.Reap()
}
