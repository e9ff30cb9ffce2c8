// Package gputest checks and measures ration on a machine with a GPU, with real
// programs, frameworks and the real driver. It compares what ration counts for each
// process with what the driver reports through NVML to this process, which is in no
// job.
//
// It runs from a folder that holds all it needs (see Bundle), so that a machine that
// has nothing but a driver can be tested. The checks that do not depend on a real
// GPU also run against fakegpu, which tests the checks themselves.
package gputest

import (
	"errors"
	"regexp"
	"time"
)

// Verdicts of checks.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip" // the machine lacks something; Summary says what
)

// Check checks one promise of ration.
type Check struct {
	Group string
	Name  string
	Needs []string // see needs.go
	Room  uint64   // bytes that must be free on the device
	run   func(*Trial) error
}

// Title is the name by which a check is selected.
func (c Check) Title() string { return c.Group + "/" + c.Name }

// Outcome is the result of a check.
type Outcome struct {
	Check   string           `json:"check"`
	Verdict string           `json:"verdict"`
	Summary string           `json:"summary"` // the measured values as text, or why it failed
	Values  map[string]int64 `json:"values,omitempty"`
	Logs    string           `json:"logs,omitempty"` // of the programs, if the check failed
	Seconds float64          `json:"seconds"`
}

// ErrUnsuited is returned by a check that this machine cannot answer.
var ErrUnsuited = errors.New("cannot be checked here")

// checks returns all checks, in the order of the report.
func checks() (all []Check) {
	for _, some := range [][]Check{limitChecks(), trainingChecks(), allocpathChecks(), meminfoChecks(), hostPIDChecks(), killChecks(), agentChecks(), programChecks(), callChecks(), computeChecks()} {
		all = append(all, some...)
	}
	return all
}

// Plan selects what to run.
type Plan struct {
	Only     *regexp.Regexp // titles to run; nil is all
	Checks   bool
	Measures bool
	Quick    bool // few rounds: a smoke run
}

func (p Plan) selects(title string) bool { return p.Only == nil || p.Only.MatchString(title) }

// Titles returns the titles of the checks and measures of a plan.
func (p Plan) Titles() (titles []string) {
	for _, c := range checks() {
		if p.Checks && p.selects(c.Title()) {
			titles = append(titles, c.Title())
		}
	}
	for _, m := range measures() {
		if p.Measures && p.selects(m.title()) {
			titles = append(titles, m.title())
		}
	}
	return titles
}

// Reporter is called with the progress of a run.
type Reporter interface {
	Begin(title string)
	Checked(Outcome)
	Measured(Row)
}

// Run runs a plan on a machine. The error is why the run could not be made; the
// results of checks are in the report.
func Run(m *Machine, p Plan, to Reporter) (Report, error) {
	began := time.Now()
	r := Report{Date: began.UTC().Format(time.RFC3339)}
	var err error
	if r.Machine, err = m.describe(); err != nil {
		return r, err
	}
	for _, c := range checks() {
		if p.Checks && p.selects(c.Title()) {
			to.Begin(c.Title())
			o := m.check(c, p.Quick)
			r.Checks = append(r.Checks, o)
			to.Checked(o)
		}
	}
	for _, measure := range measures() {
		if !p.Measures || !p.selects(measure.title()) {
			continue
		}
		to.Begin(measure.title())
		rows := m.measure(measure, p.Quick)
		r.Measures = append(r.Measures, rows...)
		for _, row := range rows {
			to.Measured(row)
		}
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// check runs one check in a trial of its own.
func (m *Machine) check(c Check, quick bool) (o Outcome) {
	began := time.Now()
	o = Outcome{Check: c.Title(), Verdict: Skip}
	defer func() { o.Seconds = time.Since(began).Seconds() }()
	if missing := m.missing(c.Needs, c.Room); missing != "" {
		o.Summary = missing
		return o
	}
	t := m.newTrial(quick)
	defer t.close()
	err := c.run(t)
	o.Summary, o.Values = t.summary(), t.values
	switch {
	case err == nil:
		o.Verdict = Pass
	case errors.Is(err, ErrUnsuited):
		o.Summary = err.Error()
	default:
		o.Verdict, o.Logs = Fail, t.logs()
		if o.Summary != "" {
			o.Summary = ": " + o.Summary
		}
		o.Summary = err.Error() + o.Summary
	}
	return o
}
