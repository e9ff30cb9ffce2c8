package gputest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
)

func killChecks() []Check {
	return []Check{
		{Group: "kill", Name: "storm", Room: 17 * gib, run: func(t *Trial) error { return t.storm(10, 16*gib) }},
		{Group: "kill", Name: "fork-child", Room: 9 * gib, run: func(t *Trial) error { return t.killParent(6*gib, 8*gib) }},
		{Group: "kill", Name: "while-starting", Room: 17 * gib, run: func(t *Trial) error { return t.killStarting(8, 16*gib) }},
	}
}

// storm lets programs allocate and free while one after the other is killed and
// replaced. Then the others become idle, and the two counts must agree. Then all are
// killed, and nothing may be left.
func (t *Trial) storm(n int, limit uint64) error {
	length := 20 * time.Second
	if t.quick {
		length = 2 * time.Second
	}
	if err := t.open(limit); err != nil {
		return err
	}
	o := t.observeCounts()
	defer o.stop()
	for range n {
		if err := t.startChurning(limit); err != nil {
			return err
		}
	}
	kills := 0
	for began := time.Now(); time.Since(began) < length; kills++ {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		i := rand.IntN(len(t.programs))
		if err := t.programs[i].Kill(); err != nil {
			return err
		}
		t.programs[i].Close()
		t.programs[i] = t.programs[len(t.programs)-1]
		t.programs = t.programs[:len(t.programs)-1]
		if err := t.startChurning(limit); err != nil {
			return err
		}
	}
	t.values["kills"] = int64(kills)
	started, err := t.endChurning()
	if err != nil {
		return err
	}
	if err := o.stop(); err != nil {
		return err
	}
	all, err := t.compare("rest")
	if err != nil {
		return err
	}
	if len(all) != started {
		return fmt.Errorf("%d processes use memory, and %d have a context", len(all), started)
	}
	for _, p := range t.programs {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	t.note("%d killed; at most %s of %s by the driver", kills+len(t.programs), humanfmt.Bytes(o.mostDriver), humanfmt.Bytes(limit))
	t.noteDifference()
	// What a killed process held stays counted until the driver has released it.
	return errors.Join(t.checkObserved(o, n), t.checkNothingLeft())
}

// killParent kills a program that has a fork child. The child has the driver's files, with
// which the driver keeps the memory, so ration counts it until the child has ended.
func (t *Trial) killParent(held, limit uint64) error {
	if err := t.open(limit); err != nil {
		return err
	}
	parent, err := t.start(nil, t.native("forker", strconv.FormatUint(held, 10), "outlived")...)
	if err != nil {
		return err
	}
	step, err := parent.At("holding")
	if err != nil {
		return err
	}
	child, err := strconv.Atoi(step.values["child"])
	if err != nil {
		return fmt.Errorf("reading the child's PID: %w", err)
	}
	if _, err := t.compare("holding"); err != nil {
		return err
	}
	before, err := t.driver.Free(t.device)
	if err != nil {
		return err
	}
	if err := parent.Kill(); err != nil {
		return err
	}
	after, err := t.driver.Free(t.device)
	if err != nil {
		return err
	}
	other, err := t.start(nil, t.native("workload")...)
	if err != nil {
		return err
	}
	if _, err := other.ask(0, "init"); err != nil {
		return err
	}
	refused, err := other.refused(limit - held)
	if err != nil {
		return err
	}
	// Half of it is more than anything else takes or gives meanwhile.
	kept := after < before+held/2
	switch {
	case kept && !refused:
		return fmt.Errorf("the driver has what pid %d held while its child, pid %d, lives, and ration granted it again", parent.PID(), child)
	case !kept:
		t.note("this driver frees a process's memory although a fork child has its files")
	}
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		return fmt.Errorf("killing the child: %w", err)
	}
	granted, err := eventually(func() (bool, error) {
		refused, err := other.refused(limit - held)
		return !refused, err
	})
	if err == nil && !granted {
		err = fmt.Errorf("what pid %d held was not returned when its child, pid %d, had ended", parent.PID(), child)
	}
	if err != nil {
		return err
	}
	free, err := t.driver.Free(t.device)
	if err != nil {
		return err
	}
	if want := before + held/2 - (limit - held); free < want {
		return fmt.Errorf("ration returned what pid %d held, and the driver has %s free, not %s", parent.PID(), humanfmt.Bytes(free), humanfmt.Bytes(want))
	}
	t.note("counted until the fork child had ended")
	if err := other.Kill(); err != nil {
		return err
	}
	return t.checkNothingLeft()
}

// refused has a program allocate so many bytes, and returns whether it was refused.
func (p *Program) refused(bytes uint64) (bool, error) {
	p.Tell("alloc %d", bytes)
	line, err := p.Line(stepWithin)
	switch {
	case err != nil:
		return false, err
	case strings.HasPrefix(line, "ok"):
		return false, nil
	case strings.HasPrefix(line, "oom"):
		return true, nil
	}
	return false, fmt.Errorf("pid %d answered %q", p.PID(), line)
}

// startChurning starts a program that allocates and frees until its next command.
func (t *Trial) startChurning(limit uint64) error {
	p, err := t.start(nil, t.native("workload")...)
	if err != nil {
		return err
	}
	p.Tell("init")
	p.Tell("churn %d %d %d 500", rand.Uint32()>>8, limit/4, 256*mib)
	return nil
}

// endChurning has all programs keep what they have and wait. It returns how many of
// them have a context: some were refused theirs, which is an ordinary out of memory.
func (t *Trial) endChurning() (started int, err error) {
	t.tellAll("info")
	for _, p := range t.programs {
		for i := range 3 { // the answers to init, churn and info
			line, err := p.Line(stepWithin)
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

// killStarting kills programs at random moments of their start, when the driver and
// the library do most of their work.
func (t *Trial) killStarting(n int, limit uint64) error {
	rounds := 6
	if t.quick {
		rounds = 1
	}
	if err := t.open(limit); err != nil {
		return err
	}
	// One program stays alive, so that the job does.
	stayer, err := t.start(nil, t.native("workload")...)
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
			p, err := t.start(nil, t.native("workload")...)
			if err != nil {
				return err
			}
			p.Tell("init")
			some = append(some, p)
		}
		for _, p := range some {
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			if err := p.Kill(); err != nil {
				return err
			}
			p.Close()
			kills++
		}
		t.programs = t.programs[:1]
	}
	t.values["kills"] = int64(kills)
	if err := t.waitForOnly(stayer); err != nil {
		return err
	}
	if _, err := t.compare("rest"); err != nil {
		return err
	}
	t.note("%d killed while they started", kills)
	t.noteDifference()
	if err := stayer.Kill(); err != nil {
		return err
	}
	return t.checkNothingLeft()
}

// waitForOnly waits until one program is the only process that uses memory, by both
// counts.
func (t *Trial) waitForOnly(p *Program) error {
	var all []account
	alone, err := eventually(func() (_ bool, err error) {
		all, err = t.accounts()
		return len(all) == 1 && all[0].pid == p.PID(), err
	})
	if err == nil && !alone {
		err = fmt.Errorf("%d processes use memory, and only one is alive", len(all))
	}
	return err
}
