package selftest

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/observer"
	"ration/internal/region"
	"ration/internal/workload"
)

// What a context costs, and what each program holds of its share in the end beside
// that: as much as a memory pool reserves at least, so that it can be had from one.
const (
	context = 2 * uint64(limit.MiB)
	settled = 32 * uint64(limit.MiB)
)

// programs is a self-test of CUDA programs that know nothing of ration, with the
// library preloaded.
type programs struct {
	Report
	machine  workload.Machine
	all      []*workload.Program
	view     *region.Region
	driver   *driver
	began    time.Time
	attached time.Duration
	said     func(string)
}

func runPrograms(n int, say func(string)) (Report, error) {
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	p := &programs{began: time.Now(), said: say}
	p.Through, p.Processes, p.Limit = Library, n, uint64(n)*share
	p.machine = workload.Machine{GPU: "h200", Region: path, Limit: p.Limit, Context: context}
	if err := p.machine.Ready(); err != nil {
		return Report{}, err
	}
	if p.driver, err = askDriver(&p.machine, p.Limit); err != nil {
		return Report{}, err
	}
	defer p.driver.close()
	defer func() { closeAll(p.all) }()
	if err := p.start(); err != nil {
		return Report{}, err
	}
	p.judge(p.play())
	return p.Report, nil
}

func closeAll(all []*workload.Program) {
	for _, w := range all {
		w.Close()
	}
}

// start starts programs, which wait to be told more.
func (p *programs) start() error {
	p.said(fmt.Sprintf("starting %d programs", p.Processes))
	p.all = nil
	for range p.Processes {
		w, err := p.machine.Start(true)
		if err != nil {
			return err
		}
		p.all = append(p.all, w)
	}
	return nil
}

func (p *programs) play() (err error) {
	if err := p.elect(); err != nil {
		return err
	}
	if p.view, err = region.OpenReadOnly(p.machine.Region); err != nil {
		return err
	}
	defer p.view.Close()
	watch := observer.Watch(p.view, 0, p.Limit, 0)
	defer watch.Stop()
	p.driver.watch()

	if err := p.work(); err != nil {
		return err
	}
	pids := func(i int) int { return p.all[i].PID() }
	if err := errors.Join(p.hostPIDs(p.view, pids), p.ownView()); err != nil {
		return err
	}
	held, err := p.sums()
	if err != nil {
		return err
	}
	reap, err := p.killNeighbour()
	if err != nil {
		return err
	}
	watch.Stop()
	p.driver.rest()
	p.limitHeld(watch)
	p.Checks = append(p.Checks, reap)
	if err := p.goHome(true); err != nil {
		return err
	}
	if err := p.books(held); err != nil {
		return err
	}
	p.totalTime(p.began, p.attached)
	return nil
}

// tell tells all programs before it waits for the answers, so many from each.
func (p *programs) tell(answers int, line func(i int) string) (out []workload.Answer, err error) {
	for i, w := range p.all {
		if err := w.Tell("%s", line(i)); err != nil {
			return nil, err
		}
	}
	return p.answers(answers)
}

// answers waits for so many from each.
func (p *programs) answers(each int) (out []workload.Answer, err error) {
	deadline := time.Now().Add(phaseWithin)
	for _, w := range p.all {
		for range each {
			a, err := w.Answer(time.Until(deadline))
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
	}
	return out, nil
}

func always(line string) func(int) string { return func(int) string { return line } }

// elect lets all programs start at once where there is no region, and once more,
// as new programs, where they find the one that others made.
func (p *programs) elect() error {
	p.said("electing an initialiser")
	from := time.Now()
	first, _, err := p.attach()
	if err != nil {
		return err
	}
	p.attached = time.Since(from)
	if err := p.goHome(false); err != nil {
		return err
	}
	closeAll(p.all)
	if err := p.start(); err != nil {
		return err
	}
	second, slow, err := p.attach()
	if err != nil {
		return err
	}
	p.election(first, second, slow)
	return nil
}

// attach has all programs call cuInit and make a context. It returns the roles they
// had, and the longest of their calls.
func (p *programs) attach() (roles []attached, slow time.Duration, err error) {
	if err := workload.TellInit(p.all); err != nil {
		return nil, 0, err
	}
	answers, err := p.answers(1)
	if err != nil {
		return nil, 0, err
	}
	for i, w := range p.all {
		if answers[i].OutOfMemory {
			return nil, 0, fmt.Errorf("pid %d was refused its context", w.PID())
		}
		role, err := w.Role()
		if err != nil {
			return nil, 0, err
		}
		roles = append(roles, attached{Role: role})
		slow = max(slow, answers[i].Slowest)
	}
	return roles, slow, nil
}

// work lets all programs be busy, within their shares and then beyond.
func (p *programs) work() error {
	var had, refused, untrue, denied int64
	for _, phase := range []struct {
		about string
		line  func(i int) string
		fits  bool // everything that is asked for
	}{
		{"taking and returning memory within shares", churn(share - context), true},
		{"taking as much as there is", churn(p.Limit), false},
		{"racing for more than half", always(fmt.Sprintf("duel %d", p.Limit/2+abi.Unit)), false},
	} {
		p.said(phase.about)
		if _, err := p.tell(0, phase.line); err != nil {
			return err
		}
		time.Sleep(busyFor)
		answers, err := p.tell(2, always("freeall")) // what they did, and that they have freed
		if err != nil {
			return err
		}
		for i := 0; i < len(answers); i += 2 {
			if phase.fits {
				had, refused = had+answers[i].Figures[0], refused+answers[i].Figures[1]
			} else {
				denied += answers[i].Figures[1]
			}
		}
		lies, err := p.untrue()
		if err != nil {
			return err
		}
		untrue += lies
	}
	p.said("holding half a share")
	answers, err := p.tell(1, func(i int) string {
		return fmt.Sprintf("%s %d", [...]string{"alloc", "async"}[i%2], settled)
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		had++
		if a.OutOfMemory {
			refused++
		}
	}
	// Each refusal is one in the region and one in a program.
	unknown := int64(p.view.Refused(0)) - refused - denied
	p.add("no false refusal", refused == 0 && untrue == 0 && unknown == 0, map[string]int64{
		"requests": had, "refused": refused, "over_limit_refused": denied, "over_limit_untrue": untrue, "unaccounted": unknown,
	}, "%d of %s that had to fit; %d untrue of %s beyond", refused, humanfmt.Count(had), untrue, humanfmt.Count(denied))
	return nil
}

func churn(most uint64) func(i int) string {
	return func(i int) string { return fmt.Sprintf("churn %d %d %d 0", i+1, most, share/4) }
}

// untrue counts, of the latest refusals, those of what would have fit by their own
// account.
func (p *programs) untrue() (n int64, err error) {
	refusals, err := p.view.Refusals()
	for _, r := range refusals {
		if r.Held+r.Asked <= r.Limit {
			n++
		}
	}
	return n, err
}

// goHome lets all programs end, of themselves.
func (p *programs) goHome(last bool) error {
	if _, err := p.tell(1, always("quit")); err != nil {
		return err
	}
	ended, err := allEnded(p.all)
	if last {
		p.add("no deadlock", err == nil, map[string]int64{"ended": ended}, "%d of %d ended by themselves", ended, p.Processes)
	}
	return err
}
