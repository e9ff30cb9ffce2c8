package processes

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// naps puts a job to sleep and wakes it, again and again, without a driver: only the books are changed
// (internal/sleep/PROTOCOL.md). It drops the lock between any two steps, as a helper that is killed, and the next helper
// goes on.
type naps struct {
	t      *testing.T
	r      *region.Region
	random *rand.Rand
	stop   chan struct{}
	ended  chan struct{}
	slept  int // read it after end
}

func startNaps(t *testing.T, path string, seed uint64) *naps {
	t.Helper()
	r, err := region.Open(path, region.Options{NoCreate: true})
	expect.OK(t, err)
	n := &naps{t: t, r: r, random: rand.New(rand.NewPCG(seed, 0)), stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(n.ended)
		n.run()
	}()
	return n
}

// end returns when the job is awake for good.
func (n *naps) end() {
	n.t.Helper()
	close(n.stop)
	select {
	case <-n.ended:
	case <-time.After(bound):
		n.t.Fatal("the job does not become awake")
	}
	n.r.Close()
}

func (n *naps) ending() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

func (n *naps) run() {
	for {
		time.Sleep(time.Duration(n.random.IntN(20)) * time.Millisecond)
		done, err := n.help()
		var refused *region.RefusedError
		if err != nil && !errors.Is(err, errKilled) && !errors.As(err, &refused) {
			n.t.Error(err)
			return
		}
		if done {
			return
		}
	}
}

// help is one helper. It returns true if the job is awake, and is to stay so.
func (n *naps) help() (bool, error) {
	unlock, err := n.r.LockSleep(time.Second)
	if err != nil {
		return false, err
	}
	defer unlock()
	word, err := n.r.Sleep()
	switch {
	case err != nil:
		return false, err
	case word.State() != abi.Awake:
		return false, n.wake(word.State())
	case n.ending():
		return true, nil
	}
	return false, n.sleep()
}

var errKilled = errors.New("the helper was killed")

// set changes the state, unless the helper is killed before it or after.
func (n *naps) set(state int) error {
	if n.random.IntN(12) == 0 {
		return errKilled
	}
	if err := n.r.SetSleep(state, false); err != nil {
		return err
	}
	if n.random.IntN(12) == 0 {
		return errKilled
	}
	return nil
}

// each calls do for the processes of the job, unless the helper is killed before one of them.
func (n *naps) each(do func(*region.Sleeper) error) error {
	all, err := n.r.Sleepers()
	for i := 0; i < len(all) && err == nil; i++ {
		if n.random.IntN(60) == 0 {
			return errKilled
		}
		err = do(&all[i])
	}
	return err
}

func (n *naps) sleep() error {
	if err := n.set(abi.Falling); err != nil {
		return err
	}
	quiet := true
	err := n.each(func(s *region.Sleeper) error {
		for end := time.Now().Add(20 * time.Millisecond); ; time.Sleep(100 * time.Microsecond) {
			done, err := n.r.Quiet(s)
			if err != nil || done {
				return err
			}
			if time.Now().After(end) { // a process that is stopped, perhaps
				quiet = false
				return nil
			}
		}
	})
	if err != nil {
		return err
	}
	if !quiet {
		return n.set(abi.Awake)
	}
	if err := n.set(abi.Asleep); err != nil {
		return err
	}
	n.slept++
	return n.each(n.r.PutAside)
}

func (n *naps) wake(state int) error {
	if state == abi.Asleep || state == abi.Waking {
		if err := n.set(abi.Waking); err != nil {
			return err
		}
		if err := n.each(n.r.TakeBack); err != nil {
			var refused *region.RefusedError
			if errors.As(err, &refused) { // the limit was lowered
				return errors.Join(err, n.set(abi.Asleep), n.each(n.r.PutAside))
			}
			return err
		}
	}
	if err := n.set(abi.Restoring); err != nil {
		return err
	}
	return n.set(abi.Awake)
}
