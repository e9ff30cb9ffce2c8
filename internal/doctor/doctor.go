// Package doctor checks whether ration works on a machine, and says how to repair it. It uses the
// real parts: the preloaded library, a region in the folder of jobs, and a C program that looks up
// driver functions in all the ways that programs do.
package doctor

import (
	"fmt"
	"os"
)

// Verdicts of a check.
const (
	Pass = "pass"
	Warn = "warn" // works, but perhaps not as expected
	Fail = "fail" // does not work
	Skip = "skip" // cannot be checked here
)

// Check is the result of one check of ration doctor.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"`             // what was found
	Remedy  string `json:"remedy,omitempty"` // what to do about it
	Fixed   bool   `json:"fixed,omitempty"`  // ration doctor --fix has repaired it
}

// Report is what `ration doctor --json` prints.
type Report struct {
	Passed bool    `json:"passed"` // no check failed
	Checks []Check `json:"checks"`
	// Status is the exit status of the program that was tried, if any.
	Status *int `json:"status,omitempty"`
}

// Options select the checks.
type Options struct {
	Fix     bool
	Measure bool     // measure time slices although the answer is known
	FakeGPU string   // check a stand-in machine instead of the driver
	Command []string // a program to try
	Version string   // of this ration
}

// checker is one run of the doctor.
type checker struct {
	Options
	report  Report
	scratch string      // a folder that is removed at the end
	library string      // path of libration.so; empty if it cannot be used
	fakeGPU string      // folder of the stand-in driver; empty for the real one
	bare    probeOutput // output of the probe without the library
	hasJobs bool        // jobs can be created
}

// Run makes all checks.
func Run(opt Options) (Report, error) {
	scratch, err := os.MkdirTemp("", "ration-doctor-")
	if err != nil {
		return Report{}, fmt.Errorf("making a temporary folder: %w (name another in TMPDIR)", err)
	}
	defer os.RemoveAll(scratch)
	c := &checker{Options: opt, scratch: scratch, report: Report{Passed: true, Checks: []Check{}}}
	c.checkKernel()
	c.checkJobFolder()
	if err := c.unpackLibrary(); err != nil {
		return Report{}, err
	}
	c.checkDriver()
	c.checkInterception()
	c.checkCompute()
	c.checkPriority()
	c.checkPreloads()
	c.checkJobs()
	c.checkAgent()
	c.checkNotifier()
	c.checkPolicy()
	if len(opt.Command) > 0 {
		c.checkProgram()
	}
	return c.report, nil
}

func (c *checker) add(check Check) {
	c.report.Checks = append(c.report.Checks, check)
	c.report.Passed = c.report.Passed && check.Verdict != Fail
}

func (c *checker) pass(name, format string, args ...any) {
	c.add(Check{Name: name, Verdict: Pass, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) skip(name, format string, args ...any) {
	c.add(Check{Name: name, Verdict: Skip, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) warn(name, remedy, format string, args ...any) {
	c.add(Check{Name: name, Verdict: Warn, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (c *checker) fail(name, remedy, format string, args ...any) {
	c.add(Check{Name: name, Verdict: Fail, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}
