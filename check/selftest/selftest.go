// Package selftest starts CUDA programs that compete for one job's memory on this
// machine, kills one of them, and reports for each thing that ration promises
// whether it held.
//
// The programs know nothing of ration: the library is preloaded into them, and
// fakegpu is their driver. They start at once when there is no region, end, and
// start again when there is one. Then each allocates and frees within a share, and
// all shares add up to the limit, so that nothing may be refused. Then each
// allocates as much as it can get, so that many requests must be refused. Then all
// want more than half of the limit, which only one can have. All the while, one
// observer reads the region and another asks the driver. At last a neighbour is
// killed while it holds all that was free.
package selftest

import (
	"fmt"
	"time"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// MaxProcesses is the most processes that a run may have.
const MaxProcesses = 300

const (
	share       = 64 * uint64(limit.MiB) // of the limit, for each program
	contextCost = 2 * uint64(limit.MiB)  // device memory that a context takes
	// atRest is what each program holds at the end beside its context: as much as
	// a memory pool reserves at least, so that a pool can provide it.
	atRest = 32 * uint64(limit.MiB)

	busyFor      = 400 * time.Millisecond // length of each phase in which programs allocate and free
	attachWithin = 10 * time.Second       // target for all programs together
	phaseWithin  = time.Minute            // a program that has not answered by then hangs
)

// Verdicts.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip" // cannot be checked here; Detail says why
)

// Check is the outcome of one check.
type Check struct {
	Name    string           `json:"name"`
	Verdict string           `json:"verdict"` // pass, fail or skip
	Detail  string           `json:"detail"`  // the measured values, as text
	Values  map[string]int64 `json:"values"`  // the measured values; times end in _ns
}

// Report is the outcome of a self-test.
type Report struct {
	Processes int     `json:"processes"`
	Limit     uint64  `json:"limit_bytes"`
	Passed    bool    `json:"passed"`
	Checks    []Check `json:"checks"`
}

// add adds a check. The detail is formatted with args.
func (r *Report) add(name string, ok bool, values map[string]int64, detail string, args ...any) {
	verdict := Fail
	if ok {
		verdict = Pass
	}
	r.Checks = append(r.Checks, Check{name, verdict, fmt.Sprintf(detail, args...), values})
}

// run is a self-test in progress.
type run struct {
	Report
	machine  cuda.Machine
	programs []*cuda.Program
	driver   *driverObserver
	region   *region.Region // read-only
	began    time.Time
	attached time.Duration // from the start to the last program attached
	progress func(string)
}

// Run runs a self-test with n programs. progress is told what it is doing. The
// error matches embedded.ErrNotBuilt if this ration was built without its library.
func Run(n int, progress func(string)) (Report, error) {
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	r := &run{began: time.Now(), progress: progress}
	r.Processes, r.Limit = n, uint64(n)*share
	r.machine = cuda.Machine{GPU: "h200", Region: path, Limit: r.Limit, Context: contextCost}
	if err := r.machine.Unpack(); err != nil {
		return Report{}, err
	}
	if r.driver, err = startDriverObserver(&r.machine, r.Limit); err != nil {
		return Report{}, err
	}
	defer r.driver.close()
	defer func() { closeAll(r.programs) }()
	if err := r.start(); err != nil {
		return Report{}, err
	}
	if err := r.runPhases(); err != nil {
		// A program that hangs or ends early is a result of the test, not a failure to
		// make it.
		r.add("no deadlock", false, nil, "%v", err)
	}
	r.Passed = len(r.Checks) > 0
	for _, c := range r.Checks {
		r.Passed = r.Passed && c.Verdict != Fail
	}
	return r.Report, nil
}

// runPhases runs all phases and adds their checks.
func (r *run) runPhases() (err error) {
	if err := r.attachTwice(); err != nil {
		return err
	}
	if r.region, err = region.OpenMapped(r.machine.Region); err != nil {
		return err
	}
	defer r.region.Close()
	usage := observer.StartUsage(r.region, 0, r.Limit, 0)
	defer usage.Stop()
	r.driver.start()

	if err := r.work(); err != nil {
		return err
	}
	if err := r.checkHostPIDs(); err != nil {
		return err
	}
	if err := r.checkDeviceSize(); err != nil {
		return err
	}
	held, err := r.readBalance()
	if err != nil {
		return err
	}
	killed, err := r.killNeighbour()
	if err != nil {
		return err
	}
	if err := usage.Stop(); err != nil {
		return err
	}
	if err := r.driver.stop(); err != nil {
		return err
	}
	r.checkLimit(usage.Tally)
	r.Checks = append(r.Checks, killed)
	ended, err := r.quit()
	r.add("no deadlock", err == nil, map[string]int64{"ended": ended}, "%d of %d ended by themselves", ended, r.Processes)
	if err != nil {
		return err
	}
	if err := r.checkAccounts(held); err != nil {
		return err
	}
	r.checkTotalTime()
	return nil
}
