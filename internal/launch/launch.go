// Package launch starts a command as a job: `ration run`.
//
// It creates the job's region before the command starts, with the devices and their limits. The
// command then needs only the library and the path of the region. These are in its environment or,
// if a program may lose its environment, at fixed paths in a mount namespace of its own (see
// keep.go).
package launch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/embedded"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

var (
	// ErrNotFound is returned for a command that does not exist.
	ErrNotFound = errors.New("command not found")
	// ErrNotRunnable is returned for a command that exists but cannot be run.
	ErrNotRunnable = errors.New("command cannot be run")
	// ErrNested is returned inside a job, because a job inside it would evade its limit.
	ErrNested = errors.New("already inside a job")
)

// Variables of the job's processes.
const (
	// EnvRegion is the path of the region.
	EnvRegion = "RATION_REGION"
	// EnvJob is the name of the job. A process with this variable treats a missing region as an
	// error, and does not create a new one without limits.
	EnvJob = "RATION_JOB"
	// EnvSleepFast is 1 in a process whose library moves its GPU memory itself when the job sleeps and wakes.
	EnvSleepFast = "RATION_SLEEP_FAST"
	// EnvCreated is the creation time of the job. A process with this variable treats another job
	// of the same name as an error.
	EnvCreated = "RATION_JOB_CREATED"
)

// Plan describes a job to start.
type Plan struct {
	Name     string // empty to derive it from the command
	Join     bool   // share the job of that name, if it is in use
	Settings limit.Settings
	Sources  Sources
	FakeGPU  string         // a stand-in machine, such as h200x2; empty for the driver
	Present  map[string]int // numbers in the job of the devices that exist where programs run, by UUID; nil for all, by the machine's numbers
	Within   region.Limits  // limits that bound these, instead of the size of the device: those of a ration
	Driver   *gpu.Driver    // driver with its devices, if the caller has it; nil to open it
	Record   bool           // record how the command ends, also in a job of all programs of a user
	Keep     bool           // limits stay in force if a program loses its environment
	Wait     *Wait          // wait for room; nil to start at once
	Command  []string       // with its arguments
	Warn     func(string)   // called with warnings for the user
	Labels   map[string]string
	Claimed  bool // as in job.Info
	// SleepAfter is for how long the job does nothing on its devices before it falls asleep; 0 if it does not.
	// WakeManual lets only ration wake wake it then.
	SleepAfter time.Duration
	WakeManual bool
	SleepFast  bool   // the library moves the command's GPU memory itself when the job sleeps and wakes
	Placed     string // why the job is on its devices; see job.Info
	// RationOn returns on how many of the machine's devices this user's ration will be, under a policy, or 0 for all. It may
	// be nil.
	RationOn func() int

	standing bool           // made by Create, without a command
	owner    int            // the only user whose programs are in it (CreateForUser); 0 for all users
	given    *region.Limits // limits of the job, whatever the settings (CreateForUser)
}

// Sources are the flags or variables that limits came from, for messages.
type Sources struct {
	Memory, Compute, ComputeMax string
	MemoryText                  string // the value of that flag as the user wrote it; empty if it is not known
	Misplaced                   bool   // --mem is among the arguments of the command, where it limits nothing
}

// Job is a job that is ready to start.
type Job struct {
	Lock    *job.Lock
	Joined  bool     // another process created it
	region  string   // path of the region that the command is counted in
	path    string   // path of the command
	args    []string // arguments of the command, beginning with its name
	environ []string // environment of the command
	library string   // path of libration.so
	fakeGPU string   // folder of the stand-in driver, if any
	keep    bool
	ruled   bool           // under a policy: the command is in its user's job, or in a run
	run     *os.File       // under a policy: the lock of the run that the command is in
	created int64          // when its region was made, in Unix nanoseconds
	warn    func(string)   // called with warnings for the user
	costs   []region.Costs // measured sizes of contexts, from earlier jobs
	signals chan os.Signal // for the command; nil while a signal ends this process
	// stopNoting ends what noteSignals has begun; nil if nobody asks how this process ended.
	stopNoting func()
}

// Counted returns the job that the command is counted in: its own, or under a policy a run or its user's job.
func (j *Job) Counted() job.Job { return job.Job{Name: j.Lock.Job.Name, Path: j.region} }

// Prepare creates or joins the job; then the command can be started. On an error it removes
// everything that it has made.
func (p Plan) Prepare() (_ *Job, err error) {
	j := &Job{args: p.Command, keep: p.Keep, warn: p.Warn}
	if err := checkNotNested(); err != nil {
		return nil, err
	}
	if err := p.checkWait(); err != nil {
		return nil, err
	}
	if p.Name != "" && !p.standing && !p.Join {
		j.noteSignals(p.Name)
	}
	if job.Ruled() {
		if out, err := p.joinUsers(j); err == nil || job.Ruled() {
			return out, err
		}
		j = &Job{args: p.Command, keep: p.Keep, warn: p.Warn, stopNoting: j.stopNoting} // the policy was disabled while the command waited
	}
	if p.Keep {
		if err := checkKeep(); err != nil {
			return nil, err
		}
	}
	if err := p.unpack(j); err != nil {
		return nil, err
	}
	if j.path, err = findCommand(p.Command[0]); err != nil {
		return nil, err
	}
	if err := checkLibc(j.path); err != nil {
		return nil, err
	}
	if err := p.make(j); err != nil {
		return nil, err
	}
	if p.forAllUsers() && p.Settings.Priority != 0 {
		if err := job.MakePriorityFile(job.Folder()); err != nil { // which the job cannot do, in its namespace
			j.Discard()
			return nil, err
		}
	}
	j.region = j.Lock.Job.Path
	return j, nil
}

// make creates or joins the job. On an error it removes everything that it has made.
func (p Plan) make(j *Job) error {
	// The limits are checked against the devices before a job is created. But a stand-in machine
	// has its state in the job's folder, so for it the job is created first.
	if p.FakeGPU == "" {
		driver, err := p.Driver, error(nil)
		switch {
		case driver == nil && p.Settings.Devices.IsSet() && !p.standing:
			driver, err = gpu.Open("") // to choose, it must say what is free
		case driver == nil:
			driver, err = KnownDevices()
		}
		if err != nil && !errors.Is(err, gpu.ErrNoDriver) {
			return err
		}
		return p.setUp(j, driver, err)
	}
	if err := p.lockJob(j); err != nil {
		return err
	}
	if err := p.setUpFake(j); err != nil {
		j.Discard()
		return err
	}
	return nil
}

// DevicesFile is the cache of the machine's devices.
func DevicesFile() string { return filepath.Join(job.Folder(), ".devices") }

// unpack unpacks the libraries.
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
	return os.Setenv("PATH", joinPaths(os.Getenv("PATH"), j.fakeGPU)) // the folder has fake-smi and fake-train
}

// lockJob creates or joins the job.
func (p Plan) lockJob(j *Job) (err error) {
	name := p.Name
	if name == "" {
		name = defaultName(p.Command[0])
	}
	if !p.standing { // a launched job will end like those that are removed here, and a standing one is removed by hand
		job.Prune()
		j.catchSignals() // a signal from now on is the command's, whose end the job has
	}
	for range 10 {
		// First try to create it: an ended job is created again, with the limits of this plan.
		j.Lock, err = job.Create(name)
		if !p.Join || !errors.Is(err, job.ErrInUse) || errors.Is(err, job.ErrQueued) {
			return err
		}
		j.Lock, err = job.Join(name)
		if j.Joined = err == nil; j.Joined || !errors.Is(err, job.ErrNoJob) {
			return err
		} // it ended in between
	}
	return err
}

// setUpFake is setUp with the devices of a stand-in machine.
func (p Plan) setUpFake(j *Job) error {
	state := p.fakeEnviron(j)["FAKEGPU_STATE"]
	if p.forAllUsers() && !j.Joined {
		if err := j.Lock.ConfineMachine(); err != nil {
			return err
		}
	}
	driver, err := gpu.OpenFake(j.fakeGPU, p.FakeGPU, state)
	if err != nil {
		return err
	}
	if p.Present != nil {
		driver.Devices = driver.CUDADevices()
		if err := os.WriteFile(filepath.Join(state, "present"), []byte(strings.Join(slices.Sorted(maps.Keys(p.Present)), "\n")+"\n"), 0o644); err != nil {
			return fmt.Errorf("saying which devices are present: %w", err)
		}
	}
	if p.forAllUsers() {
		if err := openToAll(state); err != nil {
			return fmt.Errorf("opening the stand-in machine to all users: %w", err)
		}
	}
	return p.setUp(j, driver, nil)
}

// openToAll lets all users write a folder and the files in it.
func openToAll(folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Chmod(filepath.Join(folder, f.Name()), 0o666); err != nil {
			return err
		}
	}
	return os.Chmod(folder, 0o777)
}

// forAllUsers reports whether programs of the job may run as any user. The permissions of the job's
// folder keep out all other processes.
func (p Plan) forAllUsers() bool { return p.Keep && os.Geteuid() == 0 }

// fakeEnviron returns the environment variables of the stand-in machine. Its state is removed with
// the job.
func (p Plan) fakeEnviron(j *Job) map[string]string {
	return map[string]string{"FAKEGPU": p.FakeGPU, "FAKEGPU_STATE": filepath.Join(j.Lock.Folder, job.MachineName)}
}

// setUp creates the region, or compares the limits with those of the job that was joined, and sets
// the command's environment. It closes the driver. If there is no driver, missing says why.
func (p Plan) setUp(j *Job, driver *gpu.Driver, missing error) (err error) {
	limits, err := p.limits(driver, missing)
	if err == nil && !p.standing {
		err = p.checkVisible(os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	if err != nil {
		return err
	}
	if p.given != nil {
		limits = *p.given
	}
	if driver != nil {
		defer driver.Close()
	}
	among := anywhere
	if j.Lock == nil {
		// A stand-in machine does not use measured sizes, because its contexts have other sizes.
		j.costs = earlierCosts()
		if p.Wait != nil {
			var ticket *job.Ticket
			if ticket, among, err = p.waitForRoom(limits, driver, missing); err != nil {
				return err
			}
			if ticket != nil {
				defer ticket.Leave() // after the job is made, which then holds its room
				atStep("admitted")
			}
		}
		if err := p.lockJob(j); err != nil {
			return err
		}
		if driver != nil {
			driver.Remember(DevicesFile())
		}
	}
	defer func() {
		if err != nil {
			j.Discard()
		}
	}()
	if !p.standing && !j.Joined {
		var done func()
		if limits, p.Placed, done, err = p.place(limits, driver, among); err != nil {
			return err
		}
		defer done() // after the region exists
	}
	if !p.standing {
		j.environ, j.path = p.environ(j, driver), j.pathInside(j.path)
	}
	if j.Joined {
		err = p.warnOfOtherLimits(j, limits)
	} else {
		err = p.makeRegion(j, limits, driver)
		if !p.Settings.Memory.IsSet() {
			p.Warn(p.unlimitedText())
		}
	}
	(*environment)(&j.environ).set(EnvCreated, strconv.FormatInt(j.created, 10))
	return err
}

func (p Plan) makeRegion(j *Job, limits region.Limits, driver *gpu.Driver) error {
	opt := region.Options{Limits: limits}
	path := j.Lock.Job.Path
	if p.forAllUsers() {
		// All users write the region; only root can write the limits.
		opt.Mode = 0o666
		if err := j.Lock.Confine(); err != nil {
			return err
		}
		if err := region.WriteLimitsFile(path, limits); err != nil {
			return err
		}
	}
	r, err := region.Open(path, opt)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case p.owner != 0:
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, p.owner, -1)); err != nil {
			return fmt.Errorf("giving the region to user %d: %w", p.owner, err)
		}
	case opt.Mode != 0:
		if err := os.Chmod(path, opt.Mode); err != nil {
			return fmt.Errorf("opening the region to all users: %w", err)
		}
	}
	if driver = p.present(driver); driver != nil {
		for _, d := range driver.Devices {
			words, ok := d.UUIDWords()
			if !ok || d.Index >= limit.MaxDevices || hasMIG(driver) {
				continue // the processes will find the device's number
			}
			if err := r.NameDevice(d.Index, words, uint64(d.Total)); err != nil {
				return err
			}
		}
	}
	j.created = r.Created()
	_ = j.Lock.WriteInfo(job.Info{Command: p.Command, Placed: p.Placed, Labels: p.Labels, Claimed: p.Claimed, SleepAfter: p.SleepAfter, WakeManual: p.WakeManual}) // a job works without it
	_ = r.OfferCosts(mergeCosts(j.costs, driver))                                                                                                                  // without it a process measures
	return j.Lock.Share()
}

// present returns the devices that exist where programs run, by their numbers in the job.
func (p Plan) present(driver *gpu.Driver) *gpu.Driver {
	if p.Present == nil || driver == nil {
		return driver
	}
	out := &gpu.Driver{}
	for _, d := range driver.Devices {
		if number, ok := p.Present[d.UUID]; ok {
			d.Index = number
			out.Devices = append(out.Devices, d)
		}
	}
	return out
}

// Discard drops the lock, and removes the job if this process created it and no other
// uses it.
func (j *Job) Discard() {
	if j.Lock == nil {
		return
	}
	if j.Joined {
		j.Lock.Release()
	} else {
		j.Lock.RemoveIfUnused()
	}
}

// checkNotNested returns ErrNested inside a job.
func checkNotNested() error {
	evade := "and a job inside it would evade its limit (run the command without ration run"
	if path := os.Getenv(EnvRegion); path != "" {
		return fmt.Errorf("%w: %s names its region, %s, %s; if this is not a job, unset %s)", ErrNested, EnvRegion, path, evade, EnvRegion)
	}
	if _, err := os.Lstat(job.WellKnown); err != nil {
		return nil
	}
	return fmt.Errorf("%w: its region is at %s, where ration run --keep mounts it for all programs here, %s)", ErrNested, job.WellKnown, evade)
}

// findCommand returns the path of a command.
func findCommand(name string) (string, error) {
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

// defaultName returns a name for a job, from the command's name and its future PID.
func defaultName(command string) string {
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
