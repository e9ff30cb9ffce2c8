// Package launch starts a command as a job: `ration run`.
//
// All that a job needs to know is in its region, made here before anything starts:
// which devices there are and what the job may have of each. The command then only
// needs the library and the region's path, which it finds in its environment, or,
// where that must not be lost, at fixed places in a mount namespace of its own
// (see keep.go).
package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"ration/internal/embedded"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

var (
	// ErrNotFound is returned for a command that is not there.
	ErrNotFound = errors.New("command not found")
	// ErrNotRunnable is returned for one that is there and cannot be run.
	ErrNotRunnable = errors.New("command cannot be run")
	// ErrNested is returned inside a job: one inside it would get around its limit.
	ErrNested = errors.New("already inside a job")
)

// EnvRegion is where a process of a job finds its region.
const EnvRegion = "RATION_REGION"

// EnvJob names the job. With it a region that is gone is an error for the library,
// and not one to be made anew, without limits.
const EnvJob = "RATION_JOB"

// WellKnown is where the library looks for a job when the environment is silent.
const WellKnown = "/run/ration/job"

// Plan is what a person asks for.
type Plan struct {
	Name     string // empty: made from the command
	Join     bool   // share a job of that name, if it lives
	Settings limit.Settings
	Source   string // of the memory limits, for messages
	FakeGPU  string // a stand-in machine, as h200x2
	Keep     bool   // limits survive the loss of the environment
	Command  []string
	Warn     func(string)
}

// Job is one that is ready to start.
type Job struct {
	Hold    *job.Lock
	Joined  bool // others made it
	path    string
	args    []string
	environ []string
	library string // path of libration.so
	fakeGPU string // folder of the stand-in driver, if any
	keep    bool
	totals  []limit.Size
	costs   []region.Costs // what earlier jobs found out
}

// Prepare does all that can go wrong before anything starts. What it made is
// removed if something does.
func (p Plan) Prepare() (_ *Job, err error) {
	j := &Job{args: p.Command, keep: p.Keep}
	if err := nested(); err != nil {
		return nil, err
	}
	if p.Keep {
		if err := mayKeep(); err != nil {
			return nil, err
		}
	}
	if err := p.unpack(j); err != nil {
		return nil, err
	}
	if j.path, err = find(p.Command[0]); err != nil {
		return nil, err
	}
	// Limits are judged before a job is made; for that a stand-in machine needs a
	// place, so there the job comes first.
	if p.FakeGPU == "" {
		driver, err := gpu.Open("")
		if err != nil && !errors.Is(err, gpu.ErrNoDriver) {
			return nil, err
		}
		if err := p.make(j, driver, err); err != nil {
			return nil, err
		}
		return j, nil
	}
	if err := p.take(j); err != nil {
		return nil, err
	}
	if err := p.makeFake(j); err != nil {
		j.Discard()
		return nil, err
	}
	return j, nil
}

// unpack puts the libraries in their place.
func (p Plan) unpack(j *Job) error {
	dir, err := embedded.Ration.Unpack()
	if err != nil {
		return err
	}
	j.library = filepath.Join(dir, "libration.so")
	if strings.ContainsAny(j.library, " :\t\n") {
		return fmt.Errorf("preloading %s: the dynamic linker takes no blank or colon in a path (name another folder in %s)", j.library, embedded.EnvFolder)
	}
	if p.FakeGPU == "" {
		return nil
	}
	if j.fakeGPU, err = embedded.FakeGPU.Unpack(); err != nil {
		return err
	}
	return os.Setenv("PATH", join(os.Getenv("PATH"), j.fakeGPU)) // where fake-smi is
}

// take gets hold of the job.
func (p Plan) take(j *Job) (err error) {
	name := p.Name
	if name == "" {
		name = nameOf(p.Command[0])
	}
	job.Prune()
	for range 10 {
		// One that has ended is begun anew, with the limits of whoever does.
		j.Hold, err = job.Create(name)
		if !p.Join || !errors.Is(err, job.ErrInUse) {
			return err
		}
		j.Hold, err = job.Join(name)
		if j.Joined = err == nil; j.Joined || !errors.Is(err, job.ErrNoJob) {
			return err
		} // it ended while we looked
	}
	return err
}

func (p Plan) makeFake(j *Job) error {
	for key, value := range p.machine(j) {
		if err := os.Setenv(key, value); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
	}
	driver, err := gpu.Open(filepath.Join(j.fakeGPU, "libnvidia-ml.so.1"))
	if err != nil {
		return &limit.InputError{Source: "--fake-gpu", Value: p.FakeGPU, Err: errors.New("not a machine that can be made up"),
			Use: "MODEL[xCOUNT][:SIZE], with h200, h100, a100 or small, like h200x2 or small:512m"}
	}
	return p.make(j, driver, nil)
}

// machine is what tells processes of the stand-in machine; it lives and dies with
// the job.
func (p Plan) machine(j *Job) map[string]string {
	return map[string]string{"FAKEGPU": p.FakeGPU, "FAKEGPU_STATE": filepath.Join(j.Hold.Folder, "gpu")}
}

// make makes the region, or checks the one that is there.
func (p Plan) make(j *Job, driver *gpu.Driver, missing error) (err error) {
	limits, err := p.limits(driver, missing)
	if err != nil {
		return err
	}
	if driver != nil {
		j.totals = driver.Totals()
		defer driver.Close()
	}
	if j.Hold == nil {
		// Not for a stand-in machine, whose contexts take what its maker likes.
		j.costs = remembered()
		if err := p.take(j); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			j.Discard()
		}
	}()
	j.environ, j.path = p.environ(j, driver), j.inside(j.path)
	if j.Joined {
		return p.compare(j, limits)
	}
	return p.region(j, limits, driver)
}

func (p Plan) region(j *Job, limits region.Limits, driver *gpu.Driver) error {
	opt := region.Options{Limits: limits}
	path := j.Hold.Job.Path
	if p.Keep && os.Geteuid() == 0 {
		// Whoever the command becomes may count; only root says how much. The job's
		// folder keeps everybody else out.
		opt.Mode = 0o666
		if err := region.WriteLimitsFile(path, limits); err != nil {
			return err
		}
	}
	r, err := region.Open(path, opt)
	if err != nil {
		return err
	}
	defer r.Close()
	if opt.Mode != 0 {
		if err := os.Chmod(path, opt.Mode); err != nil {
			return fmt.Errorf("opening the region to all users: %w", err)
		}
	}
	if driver != nil && !divided(driver) {
		for _, d := range driver.Devices {
			words, ok := d.Words()
			if !ok || d.Index >= limit.MaxDevices {
				continue // processes agree on a number among themselves
			}
			if err := r.NameDevice(d.Index, words, uint64(d.Total)); err != nil {
				return err
			}
		}
	}
	_ = r.OfferCosts(inherit(j.costs, driver)) // without it they are measured
	return j.Hold.Share()
}

// Discard takes back what was prepared, unless others use it.
func (j *Job) Discard() {
	if j.Hold == nil {
		return
	}
	if j.Joined {
		j.Hold.Release()
	} else {
		j.Hold.RemoveIfUnused()
	}
}

// nested refuses to start a job inside a job.
func nested() error {
	at := os.Getenv(EnvRegion)
	if at == "" {
		if _, err := os.Lstat(WellKnown); err != nil {
			return nil
		}
		at = WellKnown
	}
	return fmt.Errorf("%w: its region is %s, and one inside it would get around its limit (run the command as it is; if this is no job, unset %s)",
		ErrNested, at, EnvRegion)
}

// find is where the command is.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		if strings.ContainsRune(name, os.PathSeparator) {
			return "", fmt.Errorf("%s: %w (there is no such file)", name, ErrNotFound)
		}
		return "", fmt.Errorf("%s: %w (is it in PATH?)", name, ErrNotFound)
	}
	return "", fmt.Errorf("%s: %w: %w", name, ErrNotRunnable, err)
}

// nameOf makes up a name for a job: what runs, and the PID it will have.
func nameOf(command string) string {
	base := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '_'
	}, filepath.Base(command))
	base = strings.TrimLeft(base[:min(len(base), 40)], ".-")
	if base == "" {
		base = "job"
	}
	return base + "-" + strconv.Itoa(os.Getpid())
}
