package selftest

import (
	"errors"
	"fmt"
	"time"

	"ration/check/harness/cuda"
	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/region"
)

// start starts the programs. They wait for their first command.
func (r *run) start() error {
	r.progress(fmt.Sprintf("starting %d programs", r.Processes))
	r.programs = nil
	for range r.Processes {
		p, err := r.machine.Start(true)
		if err != nil {
			return err
		}
		r.programs = append(r.programs, p)
	}
	return nil
}

func closeAll(programs []*cuda.Program) {
	for _, p := range programs {
		p.Close()
	}
}

// tell tells every program a command, and then waits for so many answers of each.
func (r *run) tell(answers int, command func(i int) string) ([]cuda.Answer, error) {
	for i, p := range r.programs {
		p.Tell("%s", command(i))
	}
	return r.answers(answers)
}

// answers waits for so many answers of each program.
func (r *run) answers(each int) (out []cuda.Answer, err error) {
	deadline := time.Now().Add(phaseWithin)
	for _, p := range r.programs {
		for range each {
			a, err := p.Answer(time.Until(deadline))
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// same is a command that is the same for all programs.
func same(command string) func(int) string { return func(int) string { return command } }

// attachTwice lets all programs start at once when there is no region, and then
// new programs when there is the region of the first ones.
func (r *run) attachTwice() error {
	r.progress("electing an initialiser")
	from := time.Now()
	first, _, err := r.attach()
	if err != nil {
		return err
	}
	r.attached = time.Since(from)
	if _, err := r.quit(); err != nil {
		return err
	}
	closeAll(r.programs)
	if err := r.start(); err != nil {
		return err
	}
	second, slowest, err := r.attach()
	if err != nil {
		return err
	}
	n := int64(r.Processes)
	r.add("one initialiser", first[region.Initialiser] == 1, map[string]int64{
		"initialisers": first[region.Initialiser], "fast": first[region.FastPath], "waited": first[region.Waited], "helped": first[region.Helped],
	}, "%d of %d; %d found it ready, %d waited, %d helped", first[region.Initialiser], n,
		first[region.FastPath], first[region.Waited], first[region.Helped])
	// Which programs take the fast path to a new region depends on the scheduler.
	// Once it is initialised, all of them must.
	r.add("fast path", second[region.FastPath] == n, map[string]int64{"fast": second[region.FastPath], "slowest_ns": int64(slowest)},
		"%d of %d when they started again, the slowest in %s", second[region.FastPath], n, humanfmt.Duration(slowest))
	return nil
}

// attach has all programs initialise the driver and make a context. It returns how
// many programs attached in each role, and the longest driver call.
func (r *run) attach() (roles [4]int64, slowest time.Duration, err error) {
	if err := cuda.TellInit(r.programs); err != nil {
		return roles, 0, err
	}
	answers, err := r.answers(1)
	if err != nil {
		return roles, 0, err
	}
	for i, p := range r.programs {
		if answers[i].OutOfMemory {
			return roles, 0, fmt.Errorf("pid %d was refused its context", p.PID())
		}
		role, err := p.Role()
		if err != nil {
			return roles, 0, err
		}
		roles[role]++
		slowest = max(slowest, answers[i].Slowest)
	}
	return roles, slowest, nil
}

// work lets all programs allocate and free, first within their shares and then
// beyond.
func (r *run) work() error {
	var requests, refused int64 // of requests within the shares, which must be granted
	var denied, wrong int64     // refusals beyond the shares, and how many of them were wrong
	for _, phase := range []struct {
		progress string
		command  func(i int) string
		fits     bool // every request must be granted
	}{
		{"allocating within shares", churn(share - contextCost), true},
		{"allocating as much as there is", churn(r.Limit), false},
		{"racing for more than half", same(fmt.Sprintf("duel %d", r.Limit/2+abi.Unit)), false},
	} {
		r.progress(phase.progress)
		if _, err := r.tell(0, phase.command); err != nil {
			return err
		}
		time.Sleep(busyFor)
		answers, err := r.tell(2, same("freeall")) // one answer to the phase's command, one to freeall
		if err != nil {
			return err
		}
		for i := 0; i < len(answers); i += 2 {
			if phase.fits {
				requests, refused = requests+answers[i].Numbers[0], refused+answers[i].Numbers[1]
			} else {
				denied += answers[i].Numbers[1]
			}
		}
		n, err := r.wrongRefusals()
		if err != nil {
			return err
		}
		wrong += n
	}
	r.progress("holding half a share")
	answers, err := r.tell(1, func(i int) string {
		return fmt.Sprintf("%s %d", [...]string{"alloc", "async"}[i%2], atRest)
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		requests++
		if a.OutOfMemory {
			refused++
		}
	}
	// Each refusal is counted once by the region and once by a program.
	unknown := int64(r.region.Refused(0)) - refused - denied
	r.add("no false refusal", refused == 0 && wrong == 0 && unknown == 0, map[string]int64{
		"requests": requests, "refused": refused, "over_limit_refused": denied, "over_limit_wrong": wrong, "unaccounted": unknown,
	}, "%d of %s within shares; %d wrong of %s beyond", refused, humanfmt.Count(requests), wrong, humanfmt.Count(denied))
	return nil
}

func churn(most uint64) func(i int) string {
	return func(i int) string { return fmt.Sprintf("churn %d %d %d 0", i+1, most, share/4) }
}

// wrongRefusals counts, of the latest refusals, those of requests that would have
// fit by the numbers in the refusal itself.
func (r *run) wrongRefusals() (n int64, err error) {
	refusals, err := r.region.Refusals()
	for _, refusal := range refusals {
		if refusal.Held+refusal.Asked <= refusal.Limit {
			n++
		}
	}
	return n, err
}

// quit lets all programs end, and counts those that did.
func (r *run) quit() (ended int64, err error) {
	if _, err := r.tell(1, same("quit")); err != nil {
		return 0, err
	}
	deadline := time.Now().Add(phaseWithin)
	var errs []error
	for _, p := range r.programs {
		if err := p.Wait(time.Until(deadline)); err != nil {
			errs = append(errs, err)
			continue
		}
		ended++
	}
	return ended, errors.Join(errs...)
}

// killNeighbour has one more program take all that is free, kills it while it
// allocates and frees, and has another one ask for the same bytes at once.
func (r *run) killNeighbour() (c Check, err error) {
	r.progress("killing a neighbour")
	victim, err := r.neighbour()
	if err != nil {
		return c, err
	}
	defer victim.Close()
	survivor, err := r.neighbour()
	if err != nil {
		return c, err
	}
	defer survivor.Close()
	free := r.Limit - r.region.Used(0)
	got, err := victim.Do(phaseWithin, "alloc %d", free-abi.Unit)
	if err != nil {
		return c, err
	}
	if got.OutOfMemory {
		return c, fmt.Errorf("a neighbour was refused %d bytes with %d free", free-abi.Unit, free)
	}
	victim.Tell("duel %d", abi.Unit)
	killed := time.Now()
	if err := victim.Kill(); err != nil {
		return c, err
	}
	dead := time.Now()
	bytes := free + contextCost // all that the victim held
	got, err = survivor.Do(phaseWithin, "alloc %d", bytes)
	granted := time.Now()
	if err != nil {
		return c, err
	}
	c = Check{Name: "killed neighbour", Verdict: Pass, Values: map[string]int64{
		"bytes": int64(bytes), "from_kill_ns": int64(granted.Sub(killed)), "from_death_ns": int64(granted.Sub(dead)),
	}}
	c.Detail = fmt.Sprintf("all its %v went to a survivor %s after its death", limit.Size(bytes), humanfmt.Duration(granted.Sub(dead)))
	if got.OutOfMemory {
		c.Verdict, c.Detail = Fail, fmt.Sprintf("its %v did not come back", limit.Size(bytes))
	}
	if _, err := survivor.Do(phaseWithin, "quit"); err != nil {
		return c, err
	}
	return c, survivor.Wait(phaseWithin)
}

// neighbour starts one more program, with a context.
func (r *run) neighbour() (*cuda.Program, error) {
	p, err := r.machine.Start(true)
	if err != nil {
		return nil, err
	}
	if _, err := p.Do(phaseWithin, "init"); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}
