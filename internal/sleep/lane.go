package sleep

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// The lane: in jobs with --sleep-fast the library of a process moves memory itself, with several threads, before the
// driver locks the process and after it runs again (PROTOCOL.md, The lane).

// laneLook is how often a process that does not answer is checked to be alive.
const laneLook = 100 * time.Millisecond

// laneBuffers is the host memory that the library takes for the time of a move, at most.
const laneBuffers = 8 * 2 * 32 << 20

// errBusy is returned for a process whose work took longer than it may.
var errBusy = errors.New("it uses the GPU for longer than it may (--busy)")

// laneTexts say why a lane could not do what it was asked for, by abi.LaneDone and so on.
var laneTexts = map[int]error{
	abi.LaneDone:     errors.New("its library stopped moving its memory"),
	abi.LaneNoMemory: errors.New("the host has no memory for it"),
	abi.LaneFailed:   errors.New("the driver could not copy its memory"),
	abi.LaneNoRoom:   ErrNoRoom,
}

// lanesOut makes the libraries of processes put aside the memory that they move themselves. No call to the driver can
// begin any more.
func (s *sleeper) lanesOut(all []region.Sleeper, busy time.Duration) error {
	for i := range all {
		l, err := s.r.Lane(&all[i])
		if err != nil {
			return err
		}
		if l.State() == abi.LaneIn {
			atStep("lane-ask")
			if _, err := s.r.SwapLane(&all[i], l, abi.MakeLane(l.Gen(), l.Number()+1, 0, abi.LaneDraining)); err != nil {
				return err
			}
		}
	}
	for i := range all {
		atStep("lane-wait")
		if err := s.laneOut(&all[i], busy); err != nil {
			return err
		}
	}
	atStep("lane-out")
	return nil
}

// laneOut returns when the lane of a process is out, or there is none.
func (s *sleeper) laneOut(p *region.Sleeper, busy time.Duration) error {
	idle, moved := time.Now().Add(busy), time.Time{}
	for {
		l, err := s.r.Lane(p)
		if err != nil {
			return err
		}
		end := idle
		switch l.State() {
		case abi.LaneNone, abi.LaneOut:
			return nil
		case abi.LaneDraining:
			if time.Now().After(idle) {
				if withdrawn, err := s.withdrawLane(p, l); withdrawn || err != nil {
					return errors.Join(s.callError("waiting for", p, errBusy), err)
				}
				continue
			}
		case abi.LaneLeaving:
			if moved.IsZero() {
				moved = time.Now().Add(moveTimeOf(p))
			}
			if end = moved; time.Now().After(end) {
				return s.callError("putting the memory aside of", p, errTimeout)
			}
		default:
			return s.callError("putting the memory aside of", p, laneTexts[l.Why()])
		}
		if err := s.waitLane(p, l, end); err != nil {
			return err
		}
	}
}

// waitLane returns when the word of a process has changed, or after a while. It finds out if the process has died.
func (s *sleeper) waitLane(p *region.Sleeper, l abi.Lane, end time.Time) error {
	if err := s.r.WaitLane(p, l, max(min(time.Until(end), laneLook), time.Millisecond)); err != nil {
		return err
	}
	_, err := s.r.Reap()
	return err
}

// withdrawLane takes a request back. The thread has not moved anything, or brings it back. It reports whether the word
// was still the same.
func (s *sleeper) withdrawLane(p *region.Sleeper, l abi.Lane) (bool, error) {
	to := abi.LaneComing
	if l.State() == abi.LaneDraining {
		to = abi.LaneIn
	}
	return s.r.SwapLane(p, l, abi.MakeLane(l.Gen(), l.Number(), 0, to))
}

// lanesBack makes the libraries of processes bring back what they put aside: all of it is charged, and the driver runs
// the processes. Before, it only withdraws what was asked for.
func (s *sleeper) lanesBack(all []region.Sleeper, running bool) error {
	for i := range all {
		for again := true; again; {
			l, err := s.r.Lane(&all[i])
			if err != nil {
				return err
			}
			again = l.State() == abi.LaneDraining || l.State() == abi.LaneLeaving || running && l.State() == abi.LaneOut
			if !again {
				break
			}
			atStep("lane-back")
			done, err := s.withdrawLane(&all[i], l)
			if err != nil {
				return err
			}
			again = !done
		}
	}
	return nil
}

// laneIn returns when the lane of a process is in, or there is none.
func (s *sleeper) laneIn(p *region.Sleeper) error {
	for end := time.Now().Add(moveTimeOf(p)); ; {
		l, err := s.r.Lane(p)
		switch {
		case err != nil:
			return err
		case l.State() == abi.LaneNone || l.State() == abi.LaneIn:
			return nil
		case l.State() != abi.LaneComing:
			return fmt.Errorf("bringing its memory back: %w", laneTexts[l.Why()])
		case time.Now().After(end):
			return errTimeout
		}
		if err := s.waitLane(p, l, end); err != nil {
			return err
		}
	}
}

// laneIsOut reports whether a process has nothing on the device that its library moves.
func (s *sleeper) laneIsOut(p *region.Sleeper) (bool, error) {
	l, err := s.r.Lane(p)
	return l.State() == abi.LaneNone || l.State() == abi.LaneOut, err
}
