package demo

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// end has everybody stand still, compares the books, and sends them home.
func (s *show) end() (err error) {
	for i, a := range s.actors {
		if i == hog {
			continue
		}
		did, err := a.quiet()
		if err != nil {
			return err
		}
		s.Requests, s.Refused = s.Requests+did.Requests, s.Refused+did.Refused
		if i != stopped { // whose longest wait is the one we made
			s.Slowest = max(s.Slowest, int64(did.Slowest))
		}
	}
	if s.Held, err = s.books(); err != nil {
		return err
	}
	if s.View, err = s.company.look(); err != nil {
		return err
	}
	time.Sleep(s.beat / 4)
	var errs []error
	for i, a := range s.actors {
		if i != hog {
			errs = append(errs, a.leave())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if s.End, err = s.books(); err != nil {
		return err
	}
	s.watch.Stop()
	s.Readings, s.Passed, s.Most = s.watch.Readings, s.watch.Passed, max(s.watch.Most, s.view.Peak(0))
	s.Agree = s.agrees()
	return nil
}

// agrees says whether all is as it was promised.
func (s *show) agrees() bool {
	const living = workers - 1
	held := s.Held.agree() && s.Held.Slots == living && s.Held.Contexts == living*s.Context
	gone := s.End.agree() && s.End.Word == 0 && s.End.Slots == 0
	limit := s.Passed == 0 && s.Most <= s.Limit && s.Refused == 0 && s.Greedy.Refused
	view := s.View == nil || s.View.Inside.Total == s.Limit>>20 && s.View.Inside.Used == s.Held.Word>>20
	return held && gone && limit && view
}

// agree says whether all ways to say what is granted come to the same.
func (b Books) agree() bool {
	return b.Word == b.Sum && (b.Driver == nil || *b.Driver == b.Word)
}

// books reads them. They agree only while nobody is busy.
func (s *show) books() (b Books, err error) {
	holdings, err := s.view.Holdings(0, nil)
	if err != nil {
		return b, err
	}
	for _, h := range holdings {
		b.Sum += h.Total
		b.Contexts += h.Kind[abi.Context]
	}
	b.Word = s.view.Used(0)
	processes, err := s.view.Processes()
	if err != nil {
		return b, err
	}
	b.Slots = len(processes)
	b.Driver, err = s.company.driver()
	return b, err
}

// find is what the region says of an actor.
func (s *show) find(a actor) (region.Process, error) {
	processes, err := s.view.Processes()
	if err != nil {
		return region.Process{}, err
	}
	for _, p := range processes {
		if p.PID == a.PID() {
			return p, nil
		}
	}
	return region.Process{}, fmt.Errorf("pid %d has no slot in %s", a.PID(), s.path)
}

// holds is what an actor has, dead or alive.
func (s *show) holds(a actor) (bytes uint64, err error) {
	p, err := s.find(a)
	if err != nil {
		return 0, err
	}
	holdings, err := s.view.Holdings(0, nil)
	for _, h := range holdings {
		if p.Slot == h.Slot {
			bytes = h.Total
		}
	}
	return bytes, err
}
