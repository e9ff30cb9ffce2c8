package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ration/check/harness"
	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
)

const victimRole = "bench-victim"

// reap measures how long a survivor waits for the memory of a process that held
// the whole limit and was killed in the middle of its work.
func reap(env Env) (Result, error) {
	const limitBytes = 10 * uint64(limit.GiB)
	var times Samples
	short := 0
	err := inRegion(func(path string) error {
		r, err := create(path, limitBytes)
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
			took, err := kill(path, limitBytes, func() error { return survivor.Charge(0, abi.Data, limitBytes) })
			if errors.Is(err, region.ErrRefused) {
				short++
				continue
			}
			if err != nil {
				return err
			}
			times = append(times, float64(took))
			if err := survivor.Return(0, abi.Data, limitBytes); err != nil {
				return err
			}
		}
		return survivor.Leave()
	})
	p99 := times.at(99, "charge after a death")
	all := Row{Name: "bytes not got back", Value: float64(short), Low: float64(short), High: float64(short), Samples: len(times) + short}
	return Result{
		Rows: []Row{times.at(50, "charge after a death"), p99.withTarget(p99.Value, float64(10*time.Millisecond), "< 10 ms"), all.withTarget(all.Value, 0, "0")},
		Notes: []string{
			fmt.Sprintf("Victims hold all of %v, charging and returning without pause, and die of SIGKILL.", limit.Size(limitBytes)),
			"Timed from when the kernel has released the victim's locks to a survivor being granted all its bytes.",
		},
	}, err
}

// kill kills a process that holds the whole limit, and times what the survivor does
// then.
func kill(path string, limit uint64, ask func() error) (time.Duration, error) {
	g, err := harness.StartGroup(harness.GroupSpec{Role: victimRole, N: 1, Task: func(int) any { return victimTask{path, limit} }})
	if err != nil {
		return 0, err
	}
	defer g.Close()
	if _, err := harness.Gather[bool](g, time.Minute); err != nil {
		return 0, err
	}
	time.Sleep(rand.N(2 * time.Millisecond)) // so that it dies at another point of a change each time
	if err := g.Workers[0].Kill(); err != nil {
		return 0, err
	}
	from := time.Now()
	err = ask()
	return time.Since(from), err
}

// victimTask is the task of a victim.
type victimTask struct {
	Path  string // of the region
	Limit uint64 // in bytes
}

// victimWorker takes the whole limit, and charges and returns until it is killed.
func victimWorker(self *harness.Self) error {
	var t victimTask
	if err := self.Task(&t); err != nil {
		return err
	}
	_, s, err := join(t.Path, "victim")
	if err != nil {
		return err
	}
	if err := s.Charge(0, abi.Data, t.Limit); err != nil {
		return err
	}
	if err := self.Report(true); err != nil {
		return err
	}
	for {
		if err := errors.Join(s.Return(0, abi.Data, chargeBytes), s.Charge(0, abi.Data, chargeBytes)); err != nil {
			return err
		}
	}
}
