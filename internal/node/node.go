// Package node reads the machine for the commands and for the agent. It adds to package machine
// what only ration itself does: return the memory of dead processes to their jobs, keep the driver
// open between two reads, and measure how much of a device's time each process had.
package node

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
	"ration/machine"
)

// Scanner is package machine's scanner.
type Scanner = job.Scanner[machine.Machine, machine.Event]

// NewScanner returns a scanner.
func NewScanner(opts job.ScanOptions) Scanner {
	return job.NewScanner.(func(job.ScanOptions) Scanner)(opts)
}

// Options are the settings of a read.
type Options struct {
	ReadOnly bool // change no region
	// Full selects jobs to read completely: if such a job is shortened (machine.Omitted), it is
	// read again alone. nil selects none.
	Full func(j *machine.Job) bool
}

// scan returns the options of a scanner.
func (o Options) scan(driver *gpu.Session) job.ScanOptions {
	out := job.ScanOptions{Once: true, Driver: driver, Reap: reapRegion}
	if o.ReadOnly {
		out.Reap = nil
	}
	return out
}

// Reader reads the machine repeatedly, and keeps the driver open in between. The zero value is
// ready. It is not safe for concurrent use.
type Reader struct {
	session gpu.Session
	meter   meter
}

// Close closes the driver.
func (r *Reader) Close() { r.session.Close() }

// Read reads the machine. It returns an error if the jobs could not be listed.
func (r *Reader) Read(opts Options) (machine.Machine, error) { return read(opts, &r.session) }

// ReadJob reads one job, with the driver's counts for it. It does not find processes outside of
// jobs.
func (r *Reader) ReadJob(j job.Job, opts Options) machine.Machine {
	return readJob(j, opts, &r.session)
}

// AddTimes sets Holding.Time, how much of the device's time each process had lately, as far as it
// is known by now.
func (r *Reader) AddTimes(jobs []machine.Job, now time.Time) {
	var samples sampler
	var devices []gpu.Device
	if d, err := r.session.Driver(); err == nil {
		samples, devices = d, d.Devices
	}
	r.meter.add(samples, devices, jobs, now)
}

// Read reads the machine once, as Reader.Read does.
func Read(opts Options) (machine.Machine, error) {
	var r Reader
	defer r.Close()
	return r.Read(opts)
}

// Jobs reads the jobs and changes none. It does not query the driver, which would take about 50 ms.
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

// ReadJob reads one job. Job.Err returns why it could not be read.
func ReadJob(j job.Job, opts Options) machine.Job { return readJob(j, opts, nil).Jobs[0] }

func readJob(j job.Job, opts Options, driver *gpu.Session) machine.Machine {
	o := opts.scan(driver)
	o.Only, o.Name = j.Path, j.Name
	s := NewScanner(o)
	defer s.Close()
	r, _ := s.Scan(true) // Job.Err returns the error
	return *r.Machine
}

// Return returns the memory of dead processes to a job and records host PIDs, if no other user can
// write the job's region. It does not read the job.
func Return(path string) error {
	r, err := region.OpenMapped(path) // OpenMapped opens only a complete region: Return must not initialise one
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

// reapRegion maps a region and returns the memory of its dead processes. The content of a region
// can mislead a process that maps it, so the caller must have checked that no other user can write
// it.
func reapRegion(path string) (n int, err error) {
	r, err := region.Open(path, region.Options{NoCreate: true})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if _, err := r.Processes(); err != nil { // records host PIDs
		return 0, err
	}
	return r.Reap()
}
