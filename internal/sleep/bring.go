package sleep

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/proc"
	"ration/internal/region"
)

// errNeedsTurn is returned for a job that sleeps, if the caller has no turn.
var errNeedsTurn = errors.New("it sleeps, and others may wait for room before it")

// wake wakes a job, with calls of the driver by c, which it closes. turn: the caller has made sure that the limits of other jobs leave room for it, and keeps it from
// others until this returns; without, it wakes only a job that has its room. With ErrNoRoom the job sleeps on.
func wake(r *region.Region, turn bool, c *calls) (out Result, err error) {
	began := time.Now()
	s, word, end, err := begin(r, c)
	if err != nil {
		return out, err
	}
	defer end()
	defer func() { out.Took = time.Since(began) }()
	state := word.State()
	if state == abi.Awake {
		return s.result(false), nil
	}
	hasRoom := state == abi.Falling || state == abi.Restoring
	if state == abi.Asleep {
		if err := s.checkStopped(); err != nil {
			return out, err
		}
	}
	if !hasRoom && !turn {
		if all, err := s.holding(); err != nil || len(all) > 0 {
			return out, cmp.Or(err, errNeedsTurn)
		}
	}
	if err := s.openDriver(); err != nil {
		return out, err
	}
	if !hasRoom {
		if err := s.charge(); err != nil {
			return out, err
		}
	}
	err = s.bring()
	return s.result(true), err
}

// checkStopped returns an error if a process is stopped: the driver would wait for it, with the memory charged.
func (s *sleeper) checkStopped() error {
	all, err := s.holding()
	if err != nil {
		return err
	}
	for i := range all {
		if stat, err := proc.ReadStat(all[i].PID); err == nil && stat.Stopped() {
			return fmt.Errorf("pid %d (%s) is stopped (it sleeps on; continue it: kill -CONT %[1]d)", all[i].PID, all[i].Name)
		}
	}
	return nil
}

// charge charges all that is aside, on all devices, or nothing.
func (s *sleeper) charge() error {
	if err := s.set(abi.Waking); err != nil {
		return err
	}
	atStep("wake-waking")
	all, err := s.holding()
	for i := 0; i < len(all) && err == nil; i++ {
		err = s.r.TakeBack(&all[i])
		atStep("wake-charged")
	}
	var refused *region.RefusedError
	if errors.As(err, &refused) {
		err = overLimit(refused.Device, refused.Limit, refused.Held+refused.Asked)
	}
	if err == nil {
		err = s.room(all)
	}
	if err != nil {
		return errors.Join(err, s.asleep())
	}
	return nil
}

// overLimit is the error of a job that had more than its limit allows now.
func overLimit(device int, limit, had uint64) error {
	return fmt.Errorf("%w: on device %d it is %s, and the job had %s there (raise it: ration limit)", ErrOverLimit, device, humanfmt.Bytes(limit), humanfmt.Bytes(had))
}

// room returns ErrNoRoom if the driver has no room for what processes have aside.
func (s *sleeper) room(all []region.Sleeper) error {
	for d := range abi.Devices {
		var need uint64
		for i := range all {
			if bytes := all[i].Shown[d]; bytes > 0 {
				need += bytes + slack
			}
		}
		if need == 0 {
			continue
		}
		at, err := s.device(d)
		if err != nil {
			return err
		}
		free, err := s.gpus.Free(at)
		if err != nil {
			return err
		}
		if free < need {
			return fmt.Errorf("%w: GPU %d has %s free, and it needs %s (end other programs, or put them to sleep)", ErrNoRoom, at,
				humanfmt.Bytes(free), humanfmt.Bytes(need))
		}
	}
	return nil
}

// device returns the driver's number of a device of the region.
func (s *sleeper) device(d int) (int, error) {
	uuid, err := s.r.UUID(d)
	if err != nil {
		return 0, err
	}
	for i, g := range s.gpus.Devices {
		if words, ok := g.UUIDWords(); ok && words == uuid {
			return i, nil
		}
	}
	if uuid[1] == 0 && d < len(s.gpus.Devices) {
		return d, nil
	}
	return 0, fmt.Errorf("device %d of the job is not a GPU of this machine now (nvidia-smi -L lists them)", d)
}

// bring makes the job awake: the driver brings back what it has put aside. All of it is charged. From its first step on
// there is no other way: a call of a killed process may be under way.
func (s *sleeper) bring() error {
	if err := s.set(abi.Restoring); err != nil {
		return err
	}
	atStep("wake-restoring")
	all, err := s.holding()
	if err != nil {
		return err
	}
	if err := s.lanesBack(all, false); err != nil {
		return err
	}
	var lost error
	var run []region.Sleeper
	for i := range all {
		err := s.toRunning(&all[i])
		switch {
		case err == nil:
			run = append(run, all[i])
		case !s.r.Lives(&all[i]):
		case errors.Is(err, ErrLost):
			lost = errors.Join(lost, err)
		default:
			return unfinished(&all[i], err)
		}
	}
	atStep("wake-running")
	if err := s.lanesBack(run, true); err != nil {
		return err
	}
	for i := range run {
		atStep("wake-lane")
		if err := s.laneIn(&run[i]); err != nil {
			return unfinished(&run[i], err)
		}
	}
	atStep("wake-restored")
	if err := s.set(abi.Awake); err != nil {
		return err
	}
	atStep("wake-awake")
	return lost
}

func unfinished(p *region.Sleeper, err error) error {
	return fmt.Errorf("%w: pid %d (%s): %w (ration wake continues)", ErrUnfinished, p.PID, p.Name, err)
}

// toRunning makes the driver run a process again, whatever state it has there, and whatever calls a killed process has
// left under way.
func (s *sleeper) toRunning(p *region.Sleeper) error {
	for end := time.Now().Add(moveTimeOf(p)); ; {
		state, err := s.calls.state(p.PID)
		if err != nil {
			return err
		}
		switch state {
		case gpu.ProcessRunning:
			if s.sure[p.PID] {
				return nil
			}
			// The driver handles one call after the other. So after this one no earlier call is under way.
			err = s.calls.call(gpu.LockCall, p.PID, 100*time.Millisecond, graceTime)
			if s.sure[p.PID] = err == nil || errors.Is(err, gpu.CUDANotReady); s.sure[p.PID] {
				err = nil
			}
		case gpu.ProcessLocked:
			atStep("wake-unlock")
			err = s.calls.call(gpu.UnlockCall, p.PID, 0, graceTime)
			s.sure[p.PID] = s.sure[p.PID] || err == nil
		case gpu.ProcessAside:
			if err := s.room([]region.Sleeper{*p}); err != nil {
				return err
			}
			atStep("wake-restore")
			err = s.calls.call(gpu.BringBackCall, p.PID, 0, moveTimeOf(p))
			if errors.Is(err, gpu.CUDAOutOfMemory) {
				return fmt.Errorf("%w: pid %d (%s) is lost (end it: kill -KILL %d)", ErrLost, p.PID, p.Name, p.PID)
			}
		case gpu.ProcessLost:
			return fmt.Errorf("%w: pid %d (%s) is lost (end it: kill -KILL %d)", ErrLost, p.PID, p.Name, p.PID)
		}
		switch {
		case err == nil:
			continue
		case !errors.Is(err, gpu.CUDAIllegalState):
			return err
		case time.Now().After(end):
			return errTimeout
		}
		time.Sleep(5 * time.Millisecond) // another call is under way
	}
}
