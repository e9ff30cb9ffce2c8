// Package gputest checks and measures ration on a machine with a GPU: real
// programs, real frameworks, the real driver. Everything that ration claims of a
// process is held against what the driver says of it through NVML, read by this
// process, which is in no job.
//
// It runs from a folder that carries all it needs (see Bundle), so that a machine
// with a driver and nothing else can be tested. The same checks run against the
// stand-in driver, as far as that goes, so that they are known to work before a GPU
// is at hand.
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
	Skip = "skip" // something it needs is not there; the figure says what
)

// Check is something ration promises, and a way to see whether it is so.
type Check struct {
	Group string
	Name  string
	Needs []string // of those in needs.go
	Room  uint64   // bytes that the device must have free
	run   func(*Stage) error
}

// Title is how a check is called, and chosen.
func (c Check) Title() string { return c.Group + "/" + c.Name }

// Outcome is what became of a check.
type Outcome struct {
	Check   string           `json:"check"`
	Verdict string           `json:"verdict"`
	Figure  string           `json:"figure"` // what was seen, for people
	Values  map[string]int64 `json:"values,omitempty"`
	Said    string           `json:"said,omitempty"` // by the programs, where it failed
	Seconds float64          `json:"seconds"`
}

// ErrUnsuited is returned by a check that this machine cannot answer.
var ErrUnsuited = errors.New("cannot be seen here")

// checks are all there are, in the order a reader wants them.
func checks() (all []Check) {
	for _, some := range [][]Check{limitChecks(), countChecks(), allocpathChecks(), viewChecks(), pidChecks(), stormChecks(), programChecks(), nameChecks()} {
		all = append(all, some...)
	}
	return all
}

// Plan is what to run.
type Plan struct {
	Only     *regexp.Regexp // of titles; nil is all
	Checks   bool
	Measures bool
	Quick    bool // fewer rounds: a smoke run
}

func (p Plan) wants(title string) bool { return p.Only == nil || p.Only.MatchString(title) }

// Titles are the checks and measures of a plan.
func (p Plan) Titles() (titles []string) {
	for _, c := range checks() {
		if p.Checks && p.wants(c.Title()) {
			titles = append(titles, c.Title())
		}
	}
	for _, m := range measures() {
		if p.Measures && p.wants(m.title()) {
			titles = append(titles, m.title())
		}
	}
	return titles
}

// Teller is told how far a run has come.
type Teller interface {
	Begin(title string)
	Checked(Outcome)
	Measured(Row)
}

// Run runs a plan on a machine. Its error is why it could not go on; what a check
// found is in the report.
func Run(m *Machine, p Plan, tell Teller) (Report, error) {
	began := time.Now()
	r := Report{Date: began.UTC().Format(time.RFC3339)}
	var err error
	if r.Machine, err = m.describe(); err != nil {
		return r, err
	}
	for _, c := range checks() {
		if p.Checks && p.wants(c.Title()) {
			tell.Begin(c.Title())
			o := m.check(c, p.Quick)
			r.Checks = append(r.Checks, o)
			tell.Checked(o)
		}
	}
	for _, measure := range measures() {
		if !p.Measures || !p.wants(measure.title()) {
			continue
		}
		tell.Begin(measure.title())
		rows := m.measure(measure, p.Quick)
		r.Measures = append(r.Measures, rows...)
		for _, row := range rows {
			tell.Measured(row)
		}
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// check runs one check and sees to it that nothing of it is left.
func (m *Machine) check(c Check, quick bool) (o Outcome) {
	began := time.Now()
	o = Outcome{Check: c.Title(), Verdict: Skip}
	defer func() { o.Seconds = time.Since(began).Seconds() }()
	if missing := m.lacks(c.Needs, c.Room); missing != "" {
		o.Figure = missing
		return o
	}
	s := m.stage(quick)
	defer s.close()
	err := c.run(s)
	o.Figure, o.Values = s.figure(), s.values
	switch {
	case err == nil:
		o.Verdict = Pass
	case errors.Is(err, ErrUnsuited):
		o.Figure = err.Error()
	default:
		o.Verdict, o.Said = Fail, s.said()
		if o.Figure != "" {
			o.Figure = ": " + o.Figure
		}
		o.Figure = err.Error() + o.Figure
	}
	return o
}
