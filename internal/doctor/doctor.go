// Package doctor finds out what keeps ration from working on a machine, and says
// the way out: one check for each thing that has to be so. What it tries, it tries
// with real parts: the library that jobs get, a region where jobs have theirs, and
// a C program that reaches the driver in each way that programs do.
package doctor

import (
	"fmt"
	"os"
)

// Verdicts of a check.
const (
	Pass = "pass"
	Warn = "warn" // works, but not as people may expect
	Fail = "fail" // does not work
	Skip = "skip" // cannot be checked here
)

// Check is one thing that was looked at.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"`            // what was found
	Way     string `json:"way,omitempty"`   // out, unless all is well
	Fixed   bool   `json:"fixed,omitempty"` // by this run
}

// Report is what `ration doctor --json` prints.
type Report struct {
	Passed bool    `json:"passed"` // nothing failed
	Checks []Check `json:"checks"`
	// Status is the exit status of the program that was tried, if any.
	Status *int `json:"status,omitempty"`
}

// Options say what to look at.
type Options struct {
	Fix     bool
	FakeGPU string   // look at a stand-in machine instead of the driver
	Command []string // a program to try
}

// visit is one run of the doctor.
type visit struct {
	Options
	report  Report
	scratch string // a folder that goes when it ends
	library string // path of libration.so; empty where there is none
	drivers string // folder of the stand-in driver, if asked for
	device  facts  // what a program sees without us
	folder  bool   // jobs can be made
}

// Run looks at everything.
func Run(opt Options) (Report, error) {
	scratch, err := os.MkdirTemp("", "ration-doctor-")
	if err != nil {
		return Report{}, fmt.Errorf("making a folder to try things in: %w (name another in TMPDIR)", err)
	}
	defer os.RemoveAll(scratch)
	v := &visit{Options: opt, scratch: scratch, report: Report{Passed: true, Checks: []Check{}}}
	v.kernel()
	v.jobsFolder()
	v.unpack()
	v.driver()
	v.interception()
	v.preloads()
	v.jobs()
	if len(opt.Command) > 0 {
		v.program()
	}
	return v.report, nil
}

func (v *visit) add(c Check) {
	v.report.Checks = append(v.report.Checks, c)
	v.report.Passed = v.report.Passed && c.Verdict != Fail
}

func (v *visit) pass(name, format string, args ...any) {
	v.add(Check{Name: name, Verdict: Pass, Text: fmt.Sprintf(format, args...)})
}

func (v *visit) skip(name, format string, args ...any) {
	v.add(Check{Name: name, Verdict: Skip, Text: fmt.Sprintf(format, args...)})
}

func (v *visit) warn(name, way, format string, args ...any) {
	v.add(Check{Name: name, Verdict: Warn, Text: fmt.Sprintf(format, args...), Way: way})
}

func (v *visit) fail(name, way, format string, args ...any) {
	v.add(Check{Name: name, Verdict: Fail, Text: fmt.Sprintf(format, args...), Way: way})
}
