// Package selftest lets processes race for one region on this machine, kills one
// of them, and says what it saw: a verdict for each thing that ration promises.
//
// The processes start at once where there is no region, leave and start again where
// there is one; then each takes and returns memory within a share, all shares making
// up the limit, so that nothing may be refused; then each takes as much as it can
// get, so that much must be; then all want more than half of everything, which only
// one can have. An observer reads the device's figure all the while. At last a
// neighbour is killed while it holds all that was free.
//
// They are CUDA programs with the library preloaded, or processes of this program
// that account in the region themselves: the first is what people use, the second
// sees each grant and refusal from inside, and needs no library.
package selftest

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/observer"
	"ration/internal/procgroup"
	"ration/internal/region"
	"ration/internal/workload"
)

// Bounds of a run.
const (
	MaxProcesses = 300
	share        = 64 * uint64(limit.MiB)
	attachWithin = 10 * time.Second
	phaseWithin  = time.Minute
)

// Verdicts.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip" // cannot be seen from here; the figure says why
)

// What the processes account through.
const (
	Library = "library"
	Region  = "region"
)

// Default is what this ration can do best, and why not the best there is.
func Default() (through string, why error) {
	if err := workload.Built(); err != nil {
		return Region, err
	}
	return Library, nil
}

// Check is one promise and what became of it.
type Check struct {
	Name    string           `json:"name"`
	Verdict string           `json:"verdict"` // pass, fail, or skip where it cannot be seen from here
	Figure  string           `json:"figure"`  // what was seen, for people
	Values  map[string]int64 `json:"values"`  // the same as numbers; times end in _ns
}

// Report is what a self-test saw.
type Report struct {
	Through   string  `json:"through"` // library or region
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
	crew     *procgroup.Crew
	path     string
	began    time.Time
	attached time.Duration // the first gate to the last process attached
	over     int64         // grants after which more than the limit was granted
	said     func(string)
}

// Run runs a self-test with n processes, through Library or Region. say is told
// what it is doing.
func Run(n int, through string, say func(string)) (Report, error) {
	if through == Library {
		return runPrograms(n, say)
	}
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	r := &run{path: path, began: time.Now(), said: say}
	r.Through, r.Processes, r.Limit = Region, n, uint64(n)*share

	say(fmt.Sprintf("starting %d processes", n))
	r.crew, err = procgroup.Start(procgroup.Spec{
		Role: Role, N: n, Gates: gates,
		Task: func(int) any { return task{Path: path, Limit: r.Limit} },
	})
	if err != nil {
		return Report{}, err
	}
	defer r.crew.Close()
	r.judge(r.play())
	return r.Report, nil
}

// judge closes a report.
func (r *Report) judge(mishap error) {
	if mishap != nil {
		// A process that is late or gave up is a verdict, not a mishap.
		r.add("no deadlock", false, nil, "%v", mishap)
	}
	r.Passed = len(r.Checks) > 0
	for _, c := range r.Checks {
		r.Passed = r.Passed && c.Verdict != Fail
	}
}

func (r *run) play() error {
	if err := r.elect(); err != nil {
		return err
	}
	view, err := region.OpenReadOnly(r.path)
	if err != nil {
		return err
	}
	defer view.Close()
	watch := observer.Watch(view, 0, r.Limit, 0)
	defer watch.Stop()

	if err := r.work(); err != nil {
		return err
	}
	if err := r.hostPIDs(view, func(i int) int { return r.crew.Workers[i].PID() }); err != nil {
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
	r.totalTime(r.began, r.attached)
	return nil
}

// elect lets all processes start at once on a region that does not exist, and
// then once more on the one they have made.
func (r *run) elect() error {
	r.said("electing an initialiser")
	from := time.Now()
	r.crew.Open(gateElect)
	first, err := procgroup.Gather[attached](r.crew, attachWithin+phaseWithin)
	if err != nil {
		return err
	}
	r.attached = time.Since(from)
	r.crew.Open(gateAttach)
	second, err := procgroup.Gather[attached](r.crew, attachWithin+phaseWithin)
	if err != nil {
		return err
	}
	r.election(first, second, slowest(second))
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
		done, err := procgroup.Gather[worked](r.crew, phaseWithin)
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
	}, "%d of %s that had to fit; %d untrue of %s beyond", refused, humanfmt.Count(had), untrue, humanfmt.Count(denied))
	return nil
}

// goHome lets all processes leave.
func (r *run) goHome() error {
	r.said("leaving")
	r.crew.Open(gateLeave)
	ended, err := allEnded(r.crew.Workers)
	r.add("no deadlock", err == nil, map[string]int64{"ended": ended}, "%d of %d ended by themselves", ended, r.Processes)
	return err
}

// allEnded counts those who ended by themselves.
func allEnded[P interface {
	Ended(time.Duration) error
}](processes []P) (ended int64, err error) {
	deadline := time.Now().Add(phaseWithin)
	var errs []error
	for _, p := range processes {
		if err := p.Ended(time.Until(deadline)); err != nil {
			errs = append(errs, err)
			continue
		}
		ended++
	}
	return ended, errors.Join(errs...)
}
