package gputest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"ration/internal/humanfmt"
)

func stormChecks() []Check {
	return []Check{
		{Group: "kill", Name: "storm", Room: 17 * gib, run: func(s *Stage) error { return s.storm(10, 16*gib) }},
		{Group: "kill", Name: "while-starting", Room: 17 * gib, run: func(s *Stage) error { return s.killStarting(8, 16*gib) }},
	}
}

// storm lets programs take and return memory while one after the other is killed
// and another takes its place; then the living rest, and the books must be the
// driver's; then all are killed, and nothing may be left.
func (s *Stage) storm(n int, limit uint64) error {
	length := 20 * time.Second
	if s.quick {
		length = 2 * time.Second
	}
	if err := s.open(limit); err != nil {
		return err
	}
	w := s.watch()
	defer w.stop()
	for range n {
		if err := s.recruit(limit); err != nil {
			return err
		}
	}
	kills := 0
	for began := time.Now(); time.Since(began) < length; kills++ {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		i := rand.IntN(len(s.all))
		if err := s.all[i].Die(); err != nil {
			return err
		}
		s.all[i].Close()
		s.all[i] = s.all[len(s.all)-1]
		s.all = s.all[:len(s.all)-1]
		if err := s.recruit(limit); err != nil {
			return err
		}
	}
	s.values["kills"] = int64(kills)
	started, err := s.rest()
	if err != nil {
		return err
	}
	w.stop()
	all, err := s.agree("rest")
	if err != nil {
		return err
	}
	if len(all) != started {
		return fmt.Errorf("%d processes hold memory, and %d have a context", len(all), started)
	}
	for _, p := range s.all {
		if err := p.Die(); err != nil {
			return err
		}
	}
	s.see("%d killed; at most %s of %s by the driver", kills+len(s.all), humanfmt.Bytes(w.Most), humanfmt.Bytes(limit))
	s.seeOff()
	// A process that was killed has left the books before the driver has taken back
	// its memory, so the sum may pass the limit by what the dying still have.
	s.values["most_driver"], s.values["most_books"] = int64(w.Most), int64(w.Granted)
	return errors.Join(w.err, s.nothingLeft())
}

// recruit starts a program that takes and returns memory until it is told more.
func (s *Stage) recruit(limit uint64) error {
	p, err := s.start(nil, s.native("workload")...)
	if err != nil {
		return err
	}
	if err := p.tell("init"); err != nil {
		return err
	}
	return p.tell(fmt.Sprintf("churn %d %d %d 500", rand.Uint32()>>8, limit/4, 256*mib))
}

// rest has all programs stop where they are and wait, and says how many of them have
// a context: some were refused theirs, which is an ordinary out of memory.
func (s *Stage) rest() (started int, err error) {
	for _, p := range s.all {
		if err := p.tell("info"); err != nil {
			return 0, err
		}
	}
	for _, p := range s.all {
		for i := range 3 { // what became of init, of churn, and of the question
			line, err := p.line(patience)
			if err != nil {
				return 0, err
			}
			if i == 0 && strings.HasPrefix(line, "ok") {
				started++
			}
		}
	}
	return started, nil
}

// killStarting kills programs at every moment of their start, where the driver and
// the library do most at once.
func (s *Stage) killStarting(n int, limit uint64) error {
	rounds := 6
	if s.quick {
		rounds = 1
	}
	if err := s.open(limit); err != nil {
		return err
	}
	// One that stays, so that the job does.
	stayer, err := s.start(nil, s.native("workload")...)
	if err != nil {
		return err
	}
	if _, err := stayer.ask(0, "init"); err != nil {
		return err
	}
	kills := 0
	for range rounds {
		var some []*Program
		for range n {
			p, err := s.start(nil, s.native("workload")...)
			if err != nil {
				return err
			}
			if err := p.tell("init"); err != nil {
				return err
			}
			some = append(some, p)
		}
		for _, p := range some {
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			if err := p.Die(); err != nil {
				return err
			}
			p.Close()
			kills++
		}
		s.all = s.all[:1]
	}
	s.values["kills"] = int64(kills)
	if err := s.onlyLeft(stayer); err != nil {
		return err
	}
	if _, err := s.agree("rest"); err != nil {
		return err
	}
	s.see("%d killed while they started", kills)
	s.seeOff()
	if err := stayer.Die(); err != nil {
		return err
	}
	return s.nothingLeft()
}

// onlyLeft waits until the driver has taken back what all others had, and then sees
// who is in the books.
func (s *Stage) onlyLeft(p *Program) error {
	var all []account
	alone, err := settled(func() (_ bool, err error) {
		all, err = s.accounts()
		return len(all) == 1 && all[0].pid == p.PID(), err
	})
	if err == nil && !alone {
		err = fmt.Errorf("%d processes have memory, and one lives", len(all))
	}
	return err
}
