// Package sleep puts jobs to sleep and wakes them: the driver puts the device memory of their processes aside, into these
// processes' host memory, and brings it back. PROTOCOL.md says in which order, and what a crash leaves.
package sleep

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/proc"
	"ration/internal/region"
)

// Errors.
var (
	ErrCannotSleep = errors.New("it cannot sleep")                     // the job is awake, as it was
	ErrInUse       = fmt.Errorf("%w: it uses the GPU", ErrCannotSleep) // of a job that should sleep only if it does not
	ErrNoRoom      = errors.New("there is no room on the GPU")         // the job sleeps on
	ErrOverLimit   = errors.New("its limit is too low")                // the job sleeps on
	ErrLost        = errors.New("the driver could not bring it back")  // the process is of no use any more
	ErrUnfinished  = errors.New("it is neither awake nor asleep")      // the next ration wake continues
)

// Times.
const (
	lockTime  = 10 * time.Second // for another process that puts the job to sleep or wakes it
	quietTime = 2 * time.Second  // for threads that are changing an account
	gateTime  = time.Second      // for threads on their way from the library's gate into the driver
	listTime  = 10 * time.Second // until the driver does not list a process any more
	graceTime = 5 * time.Second  // beyond the driver's own timeout
	moveTime  = time.Minute      // for putting memory aside or bringing it back, and
	moveSpeed = 100 << 20        // bytes in a second on top
)

// slack is the memory of a device that a process may take beyond what is charged for it.
const slack = 16 << 20

// atStep is called between any two steps, for tests that end the process there.
var atStep = func(string) {}

// OnStep sets the function that is called at each step.
func OnStep(f func(step string)) { atStep = f }

// Result is what Sleep or Wake did.
type Result struct {
	Changed   bool                // it was not so before
	Processes int                 // that hold device memory
	Bytes     [abi.Devices]uint64 // that they hold
	Took      time.Duration
}

// Options are the settings of Sleep.
type Options struct {
	Manual bool          // no process waits for a call that wants the job awake
	Busy   time.Duration // how long work that is under way may take
	Unused bool          // a call to the GPU while the job falls asleep keeps it awake
	Sleeps *uint64       // how often the job had begun to fall asleep when it was found unused; nil for any number
}

// sleeper does the steps. It has the sleep lock.
type sleeper struct {
	r      *region.Region
	calls  *calls
	gpus   *gpu.Driver
	manual bool
	unused bool         // Options.Unused
	wanted uint64       // the region's count before the job fell asleep
	sure   map[int]bool // by PID: no call of another helper is under way
}

// begin takes the sleep lock, which end drops, and returns the state that it found.
func begin(r *region.Region, c *calls) (s *sleeper, word abi.Sleep, end func(), err error) {
	unlock, err := r.LockSleep(lockTime)
	if err != nil {
		return nil, 0, nil, err
	}
	s = &sleeper{r: r, calls: c, sure: map[int]bool{}}
	if word, err = r.Sleep(); err == nil {
		s.wanted, err = r.Wanted()
	}
	if err != nil {
		unlock()
		return nil, 0, nil, err
	}
	s.manual = word.Manual() != 0
	atStep("sleep-locked")
	return s, word, func() {
		c.close()
		if s.gpus != nil {
			s.gpus.Close()
		}
		unlock()
	}, nil
}

// openDriver must have been called before anything is changed. The child that calls CUDA starts meanwhile.
func (s *sleeper) openDriver() (err error) {
	if err := s.calls.start(); err != nil {
		return err
	}
	s.gpus, err = gpu.Open("")
	return err
}

// Sleep puts a job to sleep, and starts the process that wakes it. With an error the job is as it was, unless it is
// ErrUnfinished.
func Sleep(r *region.Region, o Options) (out Result, err error) {
	began := time.Now()
	s, word, end, err := begin(r, &calls{})
	if err != nil {
		return out, err
	}
	defer end()
	defer func() { out.Took = time.Since(began) }()
	if o.Sleeps != nil && *o.Sleeps != word.Count() { // it has slept since then, and may have been used
		return out, ErrInUse
	}
	if err := s.openDriver(); err != nil {
		return out, err
	}
	s.manual, s.unused = o.Manual, o.Unused
	if word.State() == abi.Falling || word.State() == abi.Restoring {
		if done, err := s.finishFall(word.State()); done || err != nil {
			return s.result(true), errors.Join(err, s.startWaiter())
		}
	}
	if word.State() == abi.Asleep || word.State() == abi.Waking {
		return s.result(word.State() == abi.Waking), errors.Join(s.asleep(), s.startWaiter())
	}
	if err := s.fall(o.Busy); err != nil {
		return out, err
	}
	return s.result(true), nil
}

func (s *sleeper) result(changed bool) Result {
	out := Result{Changed: changed}
	all, _ := s.holding()
	for _, p := range all {
		out.Processes++
		for d, bytes := range p.Shown {
			out.Bytes[d] += bytes
		}
	}
	return out
}

// holding returns the living processes that hold device memory, or have it aside.
func (s *sleeper) holding() ([]region.Sleeper, error) {
	all, err := s.r.Sleepers()
	var out []region.Sleeper
	for _, p := range all {
		if p.Shows() > 0 {
			out = append(out, p)
		}
	}
	return out, err
}

// finishFall finishes what a killed process began: the job is asleep (done), or awake again.
func (s *sleeper) finishFall(state int) (done bool, err error) {
	all, err := s.holding()
	if err != nil {
		return false, err
	}
	aside := state == abi.Falling && len(all) > 0
	for i := range all {
		is, err := s.calls.state(all[i].PID)
		if err != nil && s.r.Lives(&all[i]) {
			return false, fmt.Errorf("%w: asking the driver about pid %d: %w", ErrUnfinished, all[i].PID, err)
		}
		out, err := s.laneIsOut(&all[i])
		if err != nil {
			return false, err
		}
		aside = aside && out && is == gpu.ProcessAside
	}
	if aside {
		return true, s.asleep()
	}
	return false, s.bring()
}

// fall puts a job that is awake to sleep.
func (s *sleeper) fall(busy time.Duration) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := s.running(); err != nil {
		return err
	}
	atStep("sleep-checked")
	if err := s.set(abi.Falling); err != nil {
		return err
	}
	// From now on it brings the job back if this process is killed.
	err := s.startWaiter()
	atStep("sleep-falling")
	if err == nil {
		err = s.putAside(busy)
	}
	if err != nil {
		if back := s.bring(); back != nil {
			return errors.Join(err, back)
		}
		return err
	}
	return s.asleep()
}

// running returns an error unless the driver can tell of each process that it runs. What it cannot tell now, it could
// not tell on the way back either.
func (s *sleeper) running() error {
	all, err := s.holding()
	for i := 0; i < len(all) && err == nil; i++ {
		state, failed := s.calls.state(all[i].PID)
		switch {
		case failed != nil && s.r.Lives(&all[i]):
			err = s.callError("asking the driver about", &all[i], failed)
		case failed == nil && state != gpu.ProcessRunning:
			err = s.callError("asking the driver about", &all[i], gpu.CUDAIllegalState)
		}
	}
	return err
}

// check returns an error if a process cannot sleep, before anything is done.
func (s *sleeper) check() error {
	all, err := s.holding()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("%w: it holds no device memory", ErrCannotSleep)
	}
	if err := able(all); err != nil {
		return err
	}
	var pids []int
	var sum, buffers uint64
	for i := range all {
		pids, sum = append(pids, all[i].PID), sum+all[i].Shows()
		if l, err := s.r.Lane(&all[i]); err == nil && l.State() != abi.LaneNone {
			buffers += min(all[i].Shows(), laneBuffers)
		}
	}
	return checkMemory(s.r.Path(), pids, sum, buffers)
}

// able returns an error if one of the processes has something that cannot sleep.
func able(all []region.Sleeper) error {
	for i := range all {
		if why := WhyNot(&all[i]); why != "" {
			return fmt.Errorf("%w: pid %d (%s) %s", ErrCannotSleep, all[i].PID, all[i].Name, why)
		}
	}
	return nil
}

// WhyNot says why a process cannot sleep now; it is empty if it can.
func WhyNot(p *region.Sleeper) string {
	if text := region.CannotText(p.Cannot); text != "" {
		return text
	}
	if p.PID == 0 {
		return "cannot be seen from here (use ration on the host, or in its container)"
	}
	if stat, err := proc.ReadStat(p.PID); err == nil && stat.Stopped() {
		return "is stopped (continue it: kill -CONT " + fmt.Sprint(p.PID) + ")"
	}
	return ""
}

// putAside lets the driver put the memory of all processes aside. The job is falling.
func (s *sleeper) putAside(busy time.Duration) error {
	if err := s.quiet(); err != nil {
		return err
	}
	all, err := s.holding()
	if err != nil {
		return err
	}
	passed(all, gateTime)
	// No account changes any more. What the libraries move becomes host memory: this check is the last.
	if err := s.check(); err != nil {
		return err
	}
	if err := s.checkUnused(); err != nil {
		return err
	}
	if err := s.lanesOut(all, busy); err != nil {
		return err
	}
	for i := range all {
		atStep("sleep-lock")
		if err := s.calls.call(gpu.LockCall, all[i].PID, busy, busy+graceTime); err != nil && s.r.Lives(&all[i]) {
			return s.callError("locking", &all[i], err)
		}
	}
	// No call begins any more, so what is found now stays so.
	if all, err = s.holding(); err != nil {
		return err
	}
	if err := able(all); err != nil {
		return err
	}
	if err := s.checkUnused(); err != nil {
		return err
	}
	for i := range all {
		atStep("sleep-aside")
		if err := s.calls.call(gpu.PutAsideCall, all[i].PID, 0, moveTimeOf(&all[i])); err != nil && s.r.Lives(&all[i]) {
			return s.callError("putting the memory aside of", &all[i], err)
		}
	}
	atStep("sleep-moved")
	return s.unlisted(all)
}

// checkUnused returns ErrInUse if a call has asked for the job to be awake since it began to fall asleep.
func (s *sleeper) checkUnused() error {
	if !s.unused {
		return nil
	}
	now, err := s.r.Wanted()
	if err == nil && now != s.wanted {
		return ErrInUse
	}
	return err
}

func moveTimeOf(p *region.Sleeper) time.Duration {
	return moveTime + time.Duration(p.Shows()/moveSpeed)*time.Second
}

func (s *sleeper) callError(what string, p *region.Sleeper, err error) error {
	return fmt.Errorf("%w: %s pid %d (%s): %w", ErrCannotSleep, what, p.PID, p.Name, err)
}

// quiet returns when no thread of the job is changing an account.
func (s *sleeper) quiet() error {
	all, err := s.r.Sleepers()
	if err != nil {
		return err
	}
	end := time.Now().Add(quietTime)
	for i := range all {
		for {
			quiet, err := s.r.Quiet(&all[i])
			if err != nil {
				return err
			}
			if quiet {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%w: pid %d (%s) is in the middle of an allocation (try again)", ErrCannotSleep, all[i].PID, all[i].Name)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// unlisted returns when the driver's own list has none of the processes with memory any more.
func (s *sleeper) unlisted(all []region.Sleeper) error {
	for end := time.Now().Add(listTime); ; time.Sleep(5 * time.Millisecond) {
		list, err := s.gpus.Processes()
		if err != nil {
			return err
		}
		held := 0
		for i := range all {
			for _, p := range list {
				if (p.PID == all[i].PID || p.PID == all[i].Host) && p.Used > slack {
					held = p.PID
				}
			}
		}
		if held == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: the driver has put the memory of pid %d aside, and still counts it", ErrCannotSleep, held)
		}
	}
}

// asleep makes the job asleep: all of its memory is aside. It returns what the ledger has.
func (s *sleeper) asleep() error {
	if err := s.set(abi.Asleep); err != nil {
		return err
	}
	atStep("sleep-asleep")
	all, err := s.r.Sleepers()
	for i := range all {
		err = errors.Join(err, s.r.PutAside(&all[i]))
		atStep("sleep-returned")
	}
	return err
}

func (s *sleeper) set(state int) error { return s.r.SetSleep(state, s.manual && state != abi.Awake) }
