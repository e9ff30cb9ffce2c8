package demo

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/embedded"
	"ration/internal/workload"
)

// through is a company of CUDA programs that know nothing of ration. The library
// is preloaded into each of them.
type through struct {
	machine workload.Machine
	outside *workload.Program // asks the driver itself, past the library
	seed    int
}

// assemble is the company this ration can have.
func assemble(path string, limit uint64) (company, error) {
	t := &through{machine: workload.Machine{
		GPU: "h100:" + fmt.Sprint(uint64(Device)), Region: path, Limit: limit,
		Context: limit / 160 / abi.Unit * abi.Unit,
	}}
	err := t.machine.Ready()
	if errors.Is(err, embedded.ErrNotBuilt) {
		return direct{}, nil
	}
	if err != nil {
		return nil, err
	}
	if t.outside, err = t.machine.Start(false); err != nil {
		return nil, err
	}
	if _, err := t.outside.Do(within, "init"); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *through) about() string {
	return "They are ordinary CUDA programs with libration.so preloaded; fakegpu is their driver."
}
func (t *through) refusal() string { return "refused with CUDA_ERROR_OUT_OF_MEMORY" }
func (t *through) context() uint64 { return t.machine.Context }
func (t *through) close()          { t.outside.Close() }

func (t *through) driver() (*uint64, error) {
	used, err := t.outside.Used(within)
	return &used, err
}

func (t *through) look() (*View, error) {
	inside, err := t.machine.Table(true)
	if err != nil {
		return nil, err
	}
	outside, err := t.machine.Table(false)
	return &View{inside, outside}, err
}

func (t *through) hire(p part) (actor, error) {
	program, err := t.machine.Start(true)
	if err != nil {
		return nil, err
	}
	t.seed++
	return &throughActor{Program: program, part: p, seed: t.seed}, nil
}

// throughActor is one of the programs.
type throughActor struct {
	*workload.Program
	part
	seed int
}

func (t *through) attach(all []actor) error {
	var programs []*workload.Program
	for _, a := range all {
		programs = append(programs, a.(*throughActor).Program)
	}
	return workload.TellInit(programs)
}

func (a *throughActor) attached() (time.Duration, error) {
	got, err := a.Answer(within)
	took := got.Slowest
	if err == nil && !got.OutOfMemory && a.Low > a.Context {
		got, err = a.Do(within, "alloc %d", a.Low-a.Context)
	}
	if err == nil && got.OutOfMemory {
		err = fmt.Errorf("%s was refused what it begins with", a.Name)
	}
	return took, err
}

func (a *throughActor) wander() error {
	room := a.High - a.Low
	return a.Tell("churn %d %d %d %d", a.seed, room, max(room/16, abi.Unit), pace.Microseconds())
}

func (a *throughActor) ask() (answer, error) {
	got, err := a.Do(within, "alloc %d", a.Ask)
	return answer{got.OutOfMemory, got.Slowest}, err
}

// quiet ends the wandering by asking what is free: any line would do.
func (a *throughActor) quiet() (did worked, err error) {
	if err := a.Tell("info"); err != nil {
		return did, err
	}
	got, err := a.Answer(within)
	if err == nil && len(got.Figures) == 3 {
		did = worked{got.Figures[0], got.Figures[1], got.Slowest}
		_, err = a.Answer(within)
	}
	return did, err
}

func (a *throughActor) leave() error {
	if _, err := a.Do(within, "quit"); err != nil {
		return err
	}
	return a.Ended(within)
}
