// Package demo is a story that anybody can watch on any machine, without a GPU:
// eight processes share the memory of a make-believe device; one asks for too
// much, one is stopped, one is killed; and in the end the books are compared.
//
// The actors are CUDA programs that know nothing of ration, with the library
// preloaded. The director knows them by what everybody can see: their PIDs, and
// what the region says of them.
package demo

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/observer"
	"ration/internal/region"
)

// Bounds of the budget.
const (
	Device   = 80 * limit.GiB // what the make-believe device has
	MinLimit = limit.MiB
)

const (
	workers = 8
	hog     = workers - 1 // the one that is killed
	stopped = 2           // the one that is stopped
	within  = time.Minute

	// rest of the observer: the demo is to be watched on a machine that does other
	// things as well.
	rest = 50 * time.Microsecond
)

// show is a demo under way.
type show struct {
	Report
	path    string
	beat    time.Duration
	stage   *stage
	company company
	actors  []actor
	view    *region.Region
	watch   *observer.Observer
}

// Run shows the story on screen, with a budget of limit bytes. quick leaves out
// the pauses in which a person can look.
func Run(limit uint64, quick bool, screen Screen) (Report, error) {
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	s := &show{path: path, beat: 2 * time.Second}
	s.Limit, s.Workers = limit/abi.Unit*abi.Unit, workers
	if quick {
		s.beat = 100 * time.Millisecond
	}
	if s.company, err = assemble(path, s.Limit); err != nil {
		return Report{}, err
	}
	defer s.company.close()
	s.Context = s.company.context()
	s.stage = newStage(screen, s.Limit)
	defer s.stage.close()
	s.stage.title("%d processes share %s of a make-believe device. No GPU is needed.\n%s", workers, humanfmt.Bytes(s.Limit), s.company.about())
	if screen.Live {
		s.stage.title("From another terminal: ration ps --region %s", path)
	}
	defer func() {
		for _, a := range s.actors {
			a.Close()
		}
	}()
	if err := s.begin(); err != nil {
		return s.Report, err
	}
	defer s.view.Close()
	defer s.watch.Stop()
	for _, act := range []func() error{s.refuse, s.stop, s.kill, s.end} {
		time.Sleep(s.beat)
		if err := act(); err != nil {
			return s.Report, err
		}
	}
	return s.Report, nil
}

// begin starts the workers and those who watch them.
func (s *show) begin() (err error) {
	for i := range workers {
		a, err := s.company.hire(s.part(i))
		if err != nil {
			return err
		}
		s.actors = append(s.actors, a)
	}
	if err := s.company.attach(s.actors); err != nil {
		return err
	}
	var slowest time.Duration
	for _, a := range s.actors {
		took, err := a.attached()
		if err != nil {
			return err
		}
		slowest = max(slowest, took)
	}
	if s.view, err = region.OpenReadOnly(s.path); err != nil {
		return err
	}
	s.watch = observer.Watch(s.view, 0, s.Limit, rest)
	for i, a := range s.actors {
		if err := errors.Join(s.cast(s.part(i).Name, a), a.wander()); err != nil {
			return err
		}
	}
	s.stage.live(s.view)
	s.stage.say("%d processes started at once and had their slots within %s; one of them made the region.", workers, humanfmt.Duration(slowest))
	return nil
}

// cast puts an actor on stage, by the slot it has.
func (s *show) cast(name string, a actor) error {
	p, err := s.find(a)
	if err == nil {
		s.stage.cast(p.Slot, name, a.PID())
	}
	return err
}

// part is what the i-th worker plays. All shares together leave room for the
// context of one guest, so that none of them is ever refused.
func (s *show) part(i int) part {
	p := part{Path: s.path, Limit: s.Limit, Context: s.Context, Name: fmt.Sprintf("worker-%d", i+1), Low: s.share(65), High: s.share(99)}
	if i == hog {
		p.Name, p.Low, p.High = "hog", s.share(280), s.share(300)
	}
	return p
}

// share is so many thousandths of the limit, in whole units.
func (s *show) share(thousandths uint64) uint64 {
	return s.Limit / abi.Unit * thousandths / 1000 * abi.Unit
}

// refuse has somebody ask for more than there is.
func (s *show) refuse() error {
	ask := s.share(400)
	guest, err := s.guest("greedy", ask)
	if err != nil {
		return err
	}
	defer guest.Close()
	got, err := guest.ask()
	if err != nil {
		return err
	}
	s.Greedy = Refusal{PID: guest.PID(), Asked: ask, Refused: got.Refused}
	s.Slowest = max(s.Slowest, int64(got.Took))
	if !got.Refused {
		s.stage.say("greedy asked for %s and got it, which must not be.", humanfmt.Bytes(ask))
		return guest.leave()
	}
	if err := errors.Join(s.explain(guest), guest.leave()); err != nil {
		return err
	}
	s.stage.say("greedy was %s: it %s.", s.company.refusal(), s.Greedy.Why)
	return nil
}

// explain looks up in the region what stood in the way of the greedy one.
func (s *show) explain(guest actor) error {
	p, err := s.find(guest)
	if err != nil {
		return err
	}
	refusals, err := s.view.Refusals()
	if err != nil {
		return err
	}
	for _, r := range refusals {
		if r.PID != p.PID {
			continue
		}
		var top []humanfmt.Holder
		for _, h := range r.Top {
			top = append(top, humanfmt.Holder{Who: s.stage.name(h.PID), Bytes: h.Bytes})
		}
		s.Greedy.Held, s.Greedy.Why = r.Held, humanfmt.Refusal(r.Asked, r.Held, r.Limit, top)
		return nil
	}
	return fmt.Errorf("pid %d was refused, and the region does not say why", p.PID)
}

// stop stops a worker for a while, wherever it is, and lets it go on.
func (s *show) stop() error {
	w := s.actors[stopped]
	if err := w.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	name, from, before := s.part(stopped).Name, time.Now(), s.watch.Changes()
	s.stage.mark(w.PID(), "stopped")
	s.stage.say("%s is stopped with SIGSTOP, in the middle of whatever it was doing.", name)
	time.Sleep(s.beat)
	s.Stopped = Stop{w.PID(), int64(time.Since(from)), s.watch.Changes() - before}
	if err := w.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.stage.mark(w.PID(), "")
	s.stage.say("%s goes on after %s. The others did not wait: at least %s changes meanwhile.", name,
		humanfmt.Duration(time.Duration(s.Stopped.For)), humanfmt.Count(s.Stopped.Changes))
	return nil
}

// kill kills the hog, and has somebody ask for what only its death makes free.
func (s *show) kill() error {
	ask := s.share(300)
	guest, err := s.guest("heir", ask)
	if err != nil {
		return err
	}
	defer guest.Close()
	w := s.actors[hog]
	if err := w.Die(); err != nil {
		return err
	}
	held, err := s.holds(w)
	if err != nil {
		return err
	}
	dead := time.Now()
	got, err := guest.ask()
	if err != nil {
		return err
	}
	s.Killed = Kill{PID: w.PID(), Held: held, Heir: guest.PID(), Asked: ask, After: int64(time.Since(dead))}
	s.Slowest = max(s.Slowest, int64(got.Took))
	s.stage.mark(w.PID(), "killed")
	if got.Refused {
		return fmt.Errorf("asking for %d bytes of a dead process: refused with %d of %d granted", ask, s.view.Used(0), s.Limit)
	}
	s.stage.say("hog is killed with SIGKILL, holding %s. heir asks for %s and has it %s later; nobody had to clean up.",
		humanfmt.Bytes(held), humanfmt.Bytes(ask), humanfmt.Duration(time.Duration(s.Killed.After)))
	time.Sleep(s.beat / 2)
	return guest.leave()
}

// guest starts one more process, which will ask for something once.
func (s *show) guest(name string, ask uint64) (actor, error) {
	a, err := s.company.hire(part{Path: s.path, Limit: s.Limit, Context: s.Context, Name: name, Low: s.Context, Ask: ask})
	if err != nil {
		return nil, err
	}
	if err = s.company.attach([]actor{a}); err == nil {
		_, err = a.attached()
	}
	if err == nil {
		err = s.cast(name, a)
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}
