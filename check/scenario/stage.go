// Package scenario has one story in three forms. CUDA programs share a job on a stand-in GPU: they
// start at once, allocate and free; one requests too much, one is stopped, one is killed; at the
// end all counts of the memory are compared.
//
// Demo shows the story on a terminal. Selftest runs it with more load, and checks each promise of
// ration. Learn lets a newcomer do the user's part at a prompt.
//
// The programs do not know ration: the library is preloaded into them, and fakegpu is their driver.
// This package knows only their PIDs and answers, and what the region and the driver report about
// them.
//
// A step of the story that fails ends it, as FailNow ends a test: need panics, and catch turns that
// into an error.
package scenario

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/internal/job"
	"ration/internal/region"
)

// within bounds every answer of a program: a program that takes longer counts as hanging.
const within = time.Minute

type failure struct{ error }

func need(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](value T, err error) T {
	need(err)
	return value
}

// catch is deferred. It returns the error of a step that failed.
func catch(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = f.error
	default:
		panic(f)
	}
}

// stage is a job on a stand-in GPU, its programs, and the readers outside it.
type stage struct {
	machine cuda.StandIn
	started []*cuda.Program // all programs
	workers []*cuda.Program // workers that were not killed
	region  *region.Region  // read-only; nil before observe
	usage   *observer.Usage // reads the region in the background; nil before observe

	driverMu sync.Mutex    // one query at a time
	driver   *cuda.Program // a program outside the job: the library does not affect its answers
}

// onStage makes a job with a limit, plays the story in it, and removes it with all its programs.
// Sizes are in bytes. The error matches embedded.ErrNotBuilt if this ration was built without its
// library.
func onStage(gpu string, limit, context uint64, play func(*stage)) (err error) {
	defer catch(&err)
	path, remove, err := job.Scratch()
	need(err)
	defer remove()
	s := &stage{machine: cuda.StandIn{GPU: gpu, Region: path, Limit: limit, Context: context}}
	need(s.machine.Unpack())
	s.driver = must(s.machine.Start(false))
	defer s.driver.Close()
	must(s.driver.Do(within, "init"))
	defer s.closeStarted()
	defer func() {
		if s.usage != nil {
			_, _ = s.usage.Stop(), s.region.Close() // reading a mapped region returns no error
		}
	}()
	play(s)
	return nil
}

func (s *stage) closeStarted() {
	for _, p := range s.started {
		p.Close()
	}
	s.started = nil
}

// start starts n programs. They wait for their first command.
func (s *stage) start(n int) []*cuda.Program {
	from := len(s.started)
	for range n {
		s.started = append(s.started, must(s.machine.Start(true)))
	}
	return s.started[from:]
}

// attach makes programs initialise the driver at the same time, and create a context. It returns
// how many of them attached to the region in each role, and the longest driver call.
func attach(programs ...*cuda.Program) (roles [4]int64, slowest time.Duration) {
	need(cuda.TellInit(programs))
	for _, p := range programs {
		a := must(p.Answer(within))
		if a.OutOfMemory {
			need(fmt.Errorf("pid %d was refused its context", p.PID()))
		}
		roles[must(p.Role())]++
		slowest = max(slowest, a.Slowest)
	}
	return roles, slowest
}

// guest starts one more program. It has a context, but is not a worker.
func (s *stage) guest() *cuda.Program {
	p := s.start(1)[0]
	attach(p)
	return p
}

// observe opens the region, and reads it in the background with a pause of interval.
func (s *stage) observe(interval time.Duration) {
	s.region = must(region.OpenMapped(s.machine.Region))
	s.usage = observer.StartUsage(s.region, 0, s.machine.Limit, interval)
}

// tell sends every worker a command, and waits for the given number of answers from each.
func (s *stage) tell(answers int, command func(i int) string) (out []cuda.Answer) {
	for i, p := range s.workers {
		p.Tell("%s", command(i))
	}
	deadline := time.Now().Add(within)
	for _, p := range s.workers {
		for range answers {
			out = append(out, must(p.Answer(time.Until(deadline))))
		}
	}
	return out
}

// same returns a command that is the same for all programs.
func same(command string) func(int) string { return func(int) string { return command } }

// endWork ends the workers' churn or duel with another command. It returns the results of the work:
// numbers of requests and refusals, and the longest driver call.
func (s *stage) endWork(by string) (out []cuda.Answer) {
	for i, a := range s.tell(2, same(by)) { // one answer to the work, one to this command
		if i%2 == 0 {
			out = append(out, a)
		}
	}
	return out
}

// Kill is the death of a program, and the request of another one that needs its memory.
type Kill struct {
	PID   int    `json:"pid"`
	Held  uint64 `json:"held"` // bytes
	Heir  int    `json:"heir_pid"`
	Asked uint64 `json:"heir_asked"`       // bytes
	After int64  `json:"granted_after_ns"` // from the death to the grant
}

// kill kills a program, and makes the heir request memory that the dead program held. got is the
// answer to the heir; fromKill is the time from the signal to that answer.
func (s *stage) kill(victim, heir *cuda.Program, ask uint64) (k Kill, got cuda.Answer, fromKill time.Duration) {
	killed := time.Now()
	need(victim.Kill())
	dead := time.Now()
	got = must(heir.Do(within, "alloc %d", ask))
	k = Kill{PID: victim.PID(), Heir: heir.PID(), Asked: ask, After: int64(time.Since(dead))}
	fromKill = time.Since(killed)
	if !got.OutOfMemory {
		k.Held = s.heldAtDeath(victim.PID())
	}
	return k, got, fromKill
}

// heldAtDeath returns how many bytes a dead process held. The process that returned them records
// this; it need not be the heir, but may be a ration ps of the user.
func (s *stage) heldAtDeath(pid int) uint64 {
	for range 100 {
		for _, d := range must(s.region.Deaths()) {
			if d.PID == pid {
				return d.Held[0]
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic(failure{fmt.Errorf("%s has no record of the death of pid %d", s.machine.Region, pid)})
}

// Accounts are three counts of the device memory in use, in bytes.
type Accounts struct {
	Granted   uint64 `json:"granted_bytes"` // in the region's ledger
	Held      uint64 `json:"held_bytes"`    // in the region, by all processes together
	Contexts  uint64 `json:"context_bytes"` // the part of Held that contexts take
	Driver    uint64 `json:"driver_bytes"`  // the driver's count
	Processes int    `json:"processes"`     // that have a slot in the region
}

// agree returns whether all three counts are the same.
func (a Accounts) agree() bool { return a.Granted == a.Held && a.Driver == a.Granted }

// accounts reads all counts. They agree only while no program allocates or frees.
func (s *stage) accounts() Accounts {
	b := must(observer.ReadBalance(s.region, 0))
	return Accounts{b.Granted, b.Held, b.Contexts, must(s.driverUsed()), b.Processes}
}

// driverUsed asks the driver how many bytes of the device are in use.
func (s *stage) driverUsed() (uint64, error) {
	s.driverMu.Lock()
	defer s.driverMu.Unlock()
	return s.driver.Used(within)
}

// quit makes programs free everything and end.
func quit(programs ...*cuda.Program) {
	deadline := time.Now().Add(within)
	for _, p := range programs {
		p.Tell("quit")
	}
	var errs []error
	for _, p := range programs {
		_, err := p.Answer(time.Until(deadline))
		if err == nil {
			err = p.Wait(time.Until(deadline))
		}
		errs = append(errs, err)
	}
	need(errors.Join(errs...))
}
