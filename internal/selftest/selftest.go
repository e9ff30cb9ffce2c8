// Package selftest lets processes race for one region on this machine, kills one
// of them, and says what it saw: a verdict for each thing that ration promises.
//
// The processes pass gates together. They start on a region that does not exist,
// leave and start again on one that does; then each takes and returns memory
// within a share, all shares making up the limit, so that nothing may be
// refused; then each takes as much as it can get, so that much must be; then all
// want more than half of everything, which only one can have. An observer reads the device's figure all the while. At last a neighbour is
// killed while it holds half of all there is.
package selftest

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/crew"
	"ration/internal/figure"
	"ration/internal/job"
	"ration/internal/observer"
	"ration/internal/ration"
	"ration/internal/region"
)

// Bounds of a run.
const (
	MaxProcesses = 300
	share        = 64 * uint64(ration.MiB)
	attachWithin = time.Duration(abi.InitBound)
	phaseWithin  = time.Minute
)

// Verdicts.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip" // cannot be seen from here; the figure says why
)

// Check is one promise and what became of it.
type Check struct {
	Name    string           `json:"name"`
	Verdict string           `json:"verdict"` // pass, fail, or skip where it cannot be seen from here
	Figure  string           `json:"figure"`  // what was seen, for people
	Values  map[string]int64 `json:"values"`  // the same as numbers; times end in _ns
}

// Report is what a self-test saw.
type Report struct {
	Processes int     `json:"processes"`
	Limit     uint64  `json:"limit_bytes"`
	Passed    bool    `json:"passed"`
	Checks    []Check `json:"checks"`
}

func (r *Report) add(name string, ok bool, values map[string]int64, figure string, args ...any) {
	verdict := Fail
	if ok {
		verdict = Pass
	}
	r.Checks = append(r.Checks, Check{name, verdict, fmt.Sprintf(figure, args...), values})
}

// run is one self-test under way.
type run struct {
	Report
	crew     *crew.Crew
	path     string
	began    time.Time
	attached time.Duration // the first gate to the last process attached
	over     int64         // grants after which more than the limit was granted
	said     func(string)
}

// Run runs a self-test with n processes. say is told what it is doing.
func Run(n int, say func(string)) (Report, error) {
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	r := &run{path: path, began: time.Now(), said: say}
	r.Processes, r.Limit = n, uint64(n)*share

	say(fmt.Sprintf("starting %d processes", n))
	r.crew, err = crew.Start(crew.Spec{
		Role: Role, N: n, Gates: gates,
		Task: func(int) any { return task{Path: path, Limit: r.Limit} },
	})
	if err != nil {
		return Report{}, err
	}
	defer r.crew.Close()

	if err := r.play(); err != nil {
		// A process that is late or gave up is a verdict, not a mishap.
		r.add("no deadlock", false, nil, "%v", err)
	}
	r.Passed = len(r.Checks) > 0
	for _, c := range r.Checks {
		r.Passed = r.Passed && c.Verdict != Fail
	}
	return r.Report, nil
}

func (r *run) play() error {
	if err := r.elect(); err != nil {
		return err
	}
	view, err := region.View(r.path)
	if err != nil {
		return err
	}
	defer view.Close()
	watch := observer.Watch(view, 0, r.Limit, 0)
	defer watch.Stop()

	if err := r.work(); err != nil {
		return err
	}
	if err := r.hostPIDs(view); err != nil {
		return err
	}
	held, err := sums(view)
	if err != nil {
		return err
	}
	reap, err := r.killNeighbour(view)
	if err != nil {
		return err
	}
	watch.Stop()
	r.limitHeld(watch, view.Peak(0))
	r.Checks = append(r.Checks, reap)
	if err := r.goHome(); err != nil {
		return err
	}
	if err := r.books(view, held); err != nil {
		return err
	}
	total := time.Since(r.began)
	r.add("total time", r.attached < attachWithin, map[string]int64{"total_ns": int64(total), "attached_ns": int64(r.attached)},
		"%s; all had attached %s after the start", figure.Duration(total), figure.Duration(r.attached))
	return nil
}

// elect lets all processes start at once on a region that does not exist, and
// then once more on the one they have made.
func (r *run) elect() error {
	r.said("electing an initialiser")
	from := time.Now()
	r.crew.Open(gateElect)
	first, err := crew.Gather[attached](r.crew, attachWithin+phaseWithin)
	if err != nil {
		return err
	}
	r.attached = time.Since(from)
	r.crew.Open(gateAttach)
	second, err := crew.Gather[attached](r.crew, attachWithin+phaseWithin)
	if err != nil {
		return err
	}
	n, roles, again := r.Processes, count(first), count(second)
	r.add("one initialiser", roles[region.Initialiser] == 1, map[string]int64{
		"initialisers": roles[region.Initialiser], "fast": roles[region.FastPath], "waited": roles[region.Waited], "helped": roles[region.Helped],
	}, "%d of %d; %d found it ready, %d waited, %d helped", roles[region.Initialiser], n,
		roles[region.FastPath], roles[region.Waited], roles[region.Helped])

	// Who is first in a race for a new region is the scheduler's business. Once
	// it is complete, everybody must take the fast path.
	slow := slowest(second)
	r.add("fast path", again[region.FastPath] == int64(n), map[string]int64{"fast": again[region.FastPath], "slowest_ns": int64(slow)},
		"%d of %d when they started again, the slowest in %s", again[region.FastPath], n, figure.Duration(slow))
	return nil
}

// work lets all processes be busy, within their shares and then beyond.
func (r *run) work() error {
	var had, refused, untrue, denied int64
	for _, phase := range []struct {
		gate  int
		about string
		fits  bool // everything that is asked for
	}{
		{gateShare, "taking and returning memory within shares", true},
		{gateGreedy, "taking as much as there is", false},
		{gateDuel, "racing for more than half", false},
		{gateSettle, "holding half a share", true},
	} {
		r.said(phase.about)
		r.crew.Open(phase.gate)
		done, err := crew.Gather[worked](r.crew, phaseWithin)
		if err != nil {
			return err
		}
		for _, w := range done {
			r.over += w.Over
			if phase.fits {
				had, refused = had+w.Requests, refused+w.Refused
			} else {
				denied, untrue = denied+w.Refused, untrue+w.Untrue
			}
		}
	}
	r.add("no false refusal", refused == 0 && untrue == 0, map[string]int64{
		"requests": had, "refused": refused, "over_limit_refused": denied, "over_limit_untrue": untrue,
	}, "%d of %s that had to fit; %d untrue of %s beyond", refused, figure.Count(had), untrue, figure.Count(denied))
	return nil
}

// goHome lets all processes leave.
func (r *run) goHome() error {
	r.said("leaving")
	r.crew.Open(gateLeave)
	deadline, ended := time.Now().Add(phaseWithin), int64(0)
	var errs []error
	for _, w := range r.crew.Workers {
		if err := w.Ended(time.Until(deadline)); err != nil {
			errs = append(errs, err)
			continue
		}
		ended++
	}
	r.add("no deadlock", len(errs) == 0, map[string]int64{"ended": ended}, "%d of %d ended by themselves", ended, r.Processes)
	return errors.Join(errs...)
}
