package demo

import (
	"time"

	"ration/internal/procgroup"
)

// direct is a company of processes of this program, which account in the region
// themselves: for a ration that was built without its library.
type direct struct{}

func (direct) about() string {
	return "This ration was built without its library (run make), so they account for themselves."
}
func (direct) refusal() string          { return "refused" }
func (direct) context() uint64          { return 0 }
func (direct) driver() (*uint64, error) { return nil, nil }
func (direct) look() (*View, error)     { return nil, nil }
func (direct) close()                   {}

func (direct) hire(p part) (actor, error) {
	c, err := procgroup.Start(procgroup.Spec{Role: Role, N: 1, Gates: gates, Task: func(int) any { return p }})
	if err != nil {
		return nil, err
	}
	return directActor{c.Workers[0], c}, nil
}

// directActor is one of them, a crew of its own.
type directActor struct {
	*procgroup.Worker
	crew *procgroup.Crew
}

func (a directActor) Close() { a.crew.Close() }

func (direct) attach(all []actor) error {
	for _, a := range all {
		a.(directActor).crew.Open(gateAttach)
	}
	return nil
}

func (a directActor) attached() (took time.Duration, err error) {
	err = a.Receive(&took, within)
	return took, err
}

func (a directActor) wander() error {
	a.crew.Open(gateAct)
	return nil
}

func (a directActor) ask() (got answer, err error) {
	a.crew.Open(gateAct)
	err = a.Receive(&got, within)
	return got, err
}

func (a directActor) quiet() (did worked, err error) {
	a.crew.Open(gateQuiet)
	err = a.Receive(&did, within)
	return did, err
}

func (a directActor) leave() error {
	a.crew.Open(gateLeave)
	return a.Ended(within)
}
