// Package demo is a story that anybody can watch on any machine, without a GPU:
// eight processes share the memory of a make-believe device; one asks for too
// much, one is stopped, one is killed; and in the end the books are compared.
//
// The director knows its cast only by what everybody can see: their PIDs, what
// the region says of them, and a gate or two. So any program that accounts in the
// region can take a part.
package demo

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"ration/internal/abi"
	"ration/internal/crew"
	"ration/internal/figure"
	"ration/internal/job"
	"ration/internal/observer"
	"ration/internal/ration"
	"ration/internal/region"
)

// Bounds of the budget.
const (
	Device   = 80 * ration.GiB // what the make-believe device has
	MinLimit = ration.MiB
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
	path  string
	beat  time.Duration
	stage *stage
	crew  *crew.Crew
	view  *region.Region
	watch *observer.Observer
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
	s.stage = newStage(screen, s.Limit)
	defer s.stage.close()
	s.stage.title("%d processes share %s of a make-believe device. No GPU is needed.", workers, figure.Bytes(s.Limit))

	if screen.Live {
		s.stage.title("From another terminal: ration ps --region %s", path)
	}
	if err := s.begin(); err != nil {
		return s.Report, err
	}
	defer s.crew.Close()
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
	s.crew, err = crew.Start(crew.Spec{Role: Role, N: workers, Gates: gates, Task: func(i int) any { return s.part(i) }})
	if err != nil {
		return err
	}
	s.crew.Open(gateBegin)
	attached, err := crew.Gather[attached](s.crew, within)
	if err == nil {
		s.view, err = region.View(s.path)
	}
	if err != nil {
		s.crew.Close()
		return err
	}
	s.watch = observer.Watch(s.view, 0, s.Limit, rest)
	var slowest time.Duration
	for i, w := range s.crew.Workers {
		s.stage.cast(attached[i].Slot, s.part(i).Name, w.PID())
		slowest = max(slowest, attached[i].Took)
	}
	s.stage.live(s.view)
	s.stage.say("%d processes started at once and had their slots within %s; one of them made the region.", workers, figure.Duration(slowest))
	return nil
}

// part is what the i-th worker plays. All shares together are the limit, so that
// none of them is ever refused.
func (s *show) part(i int) part {
	p := part{Path: s.path, Limit: s.Limit, Name: fmt.Sprintf("worker-%d", i+1), Low: s.share(65), High: s.share(100)}
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
	guest.Open(gateBegin)
	var got answer
	if err := guest.Workers[0].Receive(&got, within); err != nil {
		return err
	}
	guest.Open(gateLeave)
	if err := guest.Workers[0].Ended(within); err != nil {
		return err
	}
	s.Greedy = Refusal{PID: guest.Workers[0].PID(), Asked: ask, Refused: got.Refused, Held: got.Held}
	s.Slowest = max(s.Slowest, int64(got.Took))
	if !got.Refused {
		s.stage.say("greedy asked for %s and got it, which must not be.", figure.Bytes(ask))
		return nil
	}
	var top []figure.Holder
	for _, h := range got.Top {
		top = append(top, figure.Holder{Who: s.stage.name(h.PID), Bytes: h.Bytes})
	}
	s.Greedy.Why = figure.Refusal(ask, got.Held, s.Limit, top)
	s.stage.say("greedy was refused: it %s.", s.Greedy.Why)
	return nil
}

// stop stops a worker for a while, wherever it is, and lets it go on.
func (s *show) stop() error {
	w := s.crew.Workers[stopped]
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
		figure.Duration(time.Duration(s.Stopped.For)), figure.Count(s.Stopped.Changes))
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
	w := s.crew.Workers[hog]
	if err := w.Die(); err != nil {
		return err
	}
	dead := time.Now()
	held, err := s.holds(w.PID())
	if err != nil {
		return err
	}
	guest.Open(gateBegin)
	var got answer
	if err := guest.Workers[0].Receive(&got, within); err != nil {
		return err
	}
	s.Killed = Kill{PID: w.PID(), Held: held, Heir: guest.Workers[0].PID(), Asked: ask, After: int64(time.Since(dead))}
	s.Slowest = max(s.Slowest, int64(got.Took))
	s.stage.mark(w.PID(), "killed")
	if got.Refused {
		return fmt.Errorf("asking for %d bytes of a dead process: refused with %d of %d granted", ask, got.Held, s.Limit)
	}
	s.stage.say("hog is killed with SIGKILL, holding %s. heir asks for %s and has it %s later; nobody had to clean up.",
		figure.Bytes(held), figure.Bytes(ask), figure.Duration(time.Duration(s.Killed.After)))
	time.Sleep(s.beat / 2)
	guest.Open(gateLeave)
	return guest.Workers[0].Ended(within)
}

// guest starts one more process, which asks for something once.
func (s *show) guest(name string, ask uint64) (*crew.Crew, error) {
	c, err := crew.Start(crew.Spec{Role: Role, N: 1, Gates: gates, Task: func(int) any {
		return part{Path: s.path, Limit: s.Limit, Name: name, Ask: ask}
	}})
	if err != nil {
		return nil, err
	}
	var a attached
	if err := c.Workers[0].Receive(&a, within); err != nil {
		c.Close()
		return nil, err
	}
	s.stage.cast(a.Slot, name, c.Workers[0].PID())
	return c, nil
}

// end has everybody stand still, compares the books, and sends them home.
func (s *show) end() error {
	s.crew.Open(gateQuiet)
	for i, w := range s.crew.Workers {
		if i == hog {
			continue
		}
		var did worked
		if err := w.Receive(&did, within); err != nil {
			return err
		}
		s.Requests, s.Refused = s.Requests+did.Requests, s.Refused+did.Refused
		if i != stopped { // whose longest wait is the one we made
			s.Slowest = max(s.Slowest, int64(did.Slowest))
		}
	}
	var err error
	if s.Held, err = s.books(); err != nil {
		return err
	}
	time.Sleep(s.beat / 4)
	s.crew.Open(gateLeave)
	var errs []error
	for i, w := range s.crew.Workers {
		if i != hog {
			errs = append(errs, w.Ended(within))
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
	s.Agree = s.Held.Word == s.Held.Sum && s.Held.Slots == workers-1 && s.End == Books{} && s.Passed == 0 && s.Most <= s.Limit && s.Refused == 0 && s.Greedy.Refused
	return nil
}

// holds is what the process of that PID has, dead or alive.
func (s *show) holds(pid int) (bytes uint64, err error) {
	processes, err := s.view.Processes()
	if err != nil {
		return 0, err
	}
	holdings, err := s.view.Holdings(0, nil)
	for _, p := range processes {
		for _, h := range holdings {
			if p.PID == pid && p.Slot == h.Slot {
				bytes = h.Total
			}
		}
	}
	return bytes, err
}

func (s *show) books() (b Books, err error) {
	holdings, err := s.view.Holdings(0, nil)
	if err != nil {
		return b, err
	}
	for _, h := range holdings {
		b.Sum += h.Total
	}
	b.Word = s.view.Used(0)
	processes, err := s.view.Processes()
	b.Slots = len(processes)
	return b, err
}
