package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/procgroup"
	"ration/internal/region"
)

const victimRole = "bench-victim"

// reap measures how long a survivor waits for the memory of a process that was
// killed while busy, holding all there is.
func reap(env Env) (Result, error) {
	const ration = 10 * uint64(limit.GiB)
	var times Samples
	short := 0
	err := inRegion(func(path string) error {
		r, err := create(path, ration)
		if err != nil {
			return err
		}
		defer r.Close()
		survivor, err := r.Claim("survivor")
		if err != nil {
			return err
		}
		deaths := env.pick(200, 5)
		for n := range deaths {
			env.Say(fmt.Sprintf("death %d of %d", n+1, deaths))
			took, err := kill(path, ration, func() error { return survivor.Charge(0, abi.Data, ration) })
			if errors.Is(err, region.ErrRefused) {
				short++
				continue
			}
			if err != nil {
				return err
			}
			times = append(times, float64(took))
			if err := survivor.Return(0, abi.Data, ration); err != nil {
				return err
			}
		}
		return survivor.Leave()
	})
	p99 := times.at(99, "charge after a death")
	all := Row{Name: "bytes not got back", Value: float64(short), Low: float64(short), High: float64(short), Samples: len(times) + short}
	return Result{
		Rows: []Row{times.at(50, "charge after a death"), p99.within(p99.Value, float64(10*time.Millisecond), "< 10 ms"), all.within(all.Value, 0, "0")},
		Notes: []string{
			fmt.Sprintf("Victims hold all of %v, charging and returning without pause, and die of SIGKILL.", limit.Size(ration)),
			"Timed from when the kernel has taken everything from the victim to a survivor being granted all its bytes.",
		},
	}, err
}

// kill kills a process that holds limit, and times what the survivor then does.
func kill(path string, limit uint64, ask func() error) (time.Duration, error) {
	c, err := procgroup.Start(procgroup.Spec{Role: victimRole, N: 1, Task: func(int) any { return falling{path, limit} }})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := procgroup.Gather[bool](c, time.Minute); err != nil {
		return 0, err
	}
	time.Sleep(rand.N(2 * time.Millisecond)) // somewhere in the middle of a change
	if err := c.Workers[0].Die(); err != nil {
		return 0, err
	}
	from := time.Now()
	err = ask()
	return time.Since(from), err
}

// falling is what a victim is told.
type falling struct {
	Path  string
	Limit uint64
}

// fall takes all there is, and is busy until it is killed.
func fall(p *procgroup.Post) error {
	var t falling
	if err := p.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, "victim")
	if err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, t.Limit); err != nil {
		return err
	}
	if err := p.Report(true); err != nil {
		return err
	}
	for {
		if err := errors.Join(s.Return(0, abi.Data, piece), s.Charge(0, abi.Data, piece)); err != nil {
			return err
		}
	}
}
