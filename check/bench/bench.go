// Package bench measures what ration costs: the region in C, which CUDA programs run, and the
// region in Go, in one table. Each result comes with its spread, with the bare atomic operation
// measured in the same run and in alternating order, and with the machine it was measured on. A
// row that has a target says whether it was met; targets are for C. A timing never makes a run
// fail: it depends on the machine and the moment.
//
// Workers do what is measured: processes in C and in Go that carry out the same orders.
package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/job"
)

// Measurement is the result of a run of benchmarks.
type Measurement struct {
	Machine Host     `json:"machine"`
	Date    string   `json:"date"`    // RFC 3339
	Command string   `json:"command"` // that makes the same run
	Seconds float64  `json:"seconds"` // duration of the run
	Results []Result `json:"results"`

	Driver      string       `json:"driver,omitempty"`      // that was compared on
	Comparisons []Comparison `json:"comparisons,omitempty"` // of `bench report` only
}

// Result is the result of one benchmark.
type Result struct {
	Bench string   `json:"bench"`
	About string   `json:"about"`
	Rows  []Row    `json:"rows"`
	Notes []string `json:"notes,omitempty"` // how to read the rows
}

// Units of rows.
const (
	Nanoseconds = "ns"
	Percent     = "%"
	Count       = ""
)

// Verdicts of rows that have a target.
const (
	OK   = "ok"
	Over = "over"
)

// Row is one measured value.
type Row struct {
	Name      string   `json:"name"`
	Language  language `json:"language,omitempty"`   // of the region that was measured: C or Go
	Unit      string   `json:"unit"`                 // ns, %, or empty for a count
	Value     float64  `json:"value"`                // the median, unless the name says another percentile
	Low       float64  `json:"low"`                  // 10th percentile over rounds, or the least sample
	High      float64  `json:"high"`                 // 90th percentile over rounds, or the largest sample
	Samples   int      `json:"samples"`              // rounds or samples behind it
	Atomic    float64  `json:"atomic,omitempty"`     // the bare atomic operation, in the same unit and run
	Ratio     float64  `json:"ratio,omitempty"`      // Value divided by Atomic
	PerSecond float64  `json:"per_second,omitempty"` // throughput, of all workers together
	Target    string   `json:"target,omitempty"`     // the target, as text
	Verdict   string   `json:"verdict,omitempty"`    // ok or over, if there is a target
	Note      string   `json:"note,omitempty"`
}

// withTarget sets a row's target: value must be at most the given one.
func (r Row) withTarget(value, most float64, target string) Row {
	r.Target, r.Verdict = target, Over
	if value <= most {
		r.Verdict = OK
	}
	return r
}

// Env is how a benchmark is run.
type Env struct {
	Quick bool         // a smoke run: few rounds
	Say   func(string) // called with what is being measured
}

// pick returns the number for a full or a quick run.
func (e Env) pick(full, quick int) int {
	if e.Quick {
		return quick
	}
	return full
}

// pause returns the duration for a full or a quick run.
func (e Env) pause(full time.Duration) time.Duration {
	if e.Quick {
		return full / 10
	}
	return full
}

// Bench is a benchmark.
type Bench struct {
	Name  string
	About string
	run   func(Env) (Result, error)
}

// Benches are all of them, in the order a reader wants them.
var Benches = []Bench{
	{"update", "one charge: limit checked, granted, counted by kind", update},
	{"read", "usage of a device, and a consistent snapshot under writers", read},
	{"scale", "charges by 1 to 32 processes, each in its own slot", scale},
	{"init", "attaching to a region", attach},
	{"reap", "memory of a killed process, until another one has it", reap},
	{"step", "a training step of 8 processes, as seen in production", step},
	{"start", "the start of a command", startUp},
}

// Run runs the named benchmarks.
func Run(names []string, env Env) (Measurement, error) {
	began := time.Now()
	report := Measurement{Date: began.Format(time.RFC3339), Command: "ration bench " + strings.Join(names, " ")}
	if len(names) == len(Benches) {
		report.Command = "ration bench all"
	}
	if env.Quick {
		report.Command += " --quick"
	}
	var err error
	if report.Machine, err = ThisHost(); err != nil {
		return report, err
	}
	for _, name := range names {
		i := slices.IndexFunc(Benches, func(b Bench) bool { return b.Name == name })
		b := Benches[i]
		inner := env
		inner.Say = func(what string) { env.Say(fmt.Sprintf("bench %s: %s", name, what)) }
		result, err := b.run(inner)
		if err != nil {
			return report, fmt.Errorf("bench %s: %w", name, err)
		}
		result.Bench, result.About = b.Name, b.About
		report.Results = append(report.Results, result)
	}
	report.Seconds = time.Since(began).Seconds()
	return report, nil
}

// inRegion calls f with the path for a new region, and removes its folder
// afterwards.
func inRegion(f func(path string) error) error {
	path, remove, err := job.Scratch()
	if err != nil {
		return err
	}
	defer remove()
	return f(path)
}
