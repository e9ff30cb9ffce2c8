package harness

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"ration/internal/abi"
	"ration/test/watch"
)

// Observer watches a region without pause while a test goes on.
type Observer struct {
	ceiling [abi.Devices]atomic.Uint64
	devices int
	end     atomic.Bool
	ended   chan struct{}
	eye     *watch.Watch
	err     error
}

// Observe begins to watch the first devices of a region that exists, each of
// which may grant at most ceiling bytes.
func Observe(t testing.TB, path string, devices int, ceiling uint64) *Observer {
	t.Helper()
	eye, err := watch.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	o := &Observer{eye: eye, devices: devices, ended: make(chan struct{})}
	for d := range devices {
		o.Raise(d, ceiling)
	}
	go o.loop()
	t.Cleanup(func() { _ = o.stop() })
	return o
}

func (o *Observer) loop() {
	defer close(o.ended)
	for !o.end.Load() && o.err == nil {
		for d := range o.devices {
			o.err = errors.Join(o.err, o.eye.Look(d, o.ceiling[d].Load()))
		}
	}
}

// Raise tells the observer of a higher limit, before it is set. A lower one it
// need not know: what is held beyond it stays held.
func (o *Observer) Raise(device int, ceiling uint64) {
	for {
		old := o.ceiling[device].Load()
		if ceiling <= old || o.ceiling[device].CompareAndSwap(old, ceiling) {
			return
		}
	}
}

// Ended is closed when the observer looks no more: it was stopped, or it has seen
// what must never be.
func (o *Observer) Ended() <-chan struct{} { return o.ended }

func (o *Observer) stop() error {
	if !o.end.Swap(true) {
		<-o.ended
		o.err = errors.Join(o.err, o.eye.Close())
	}
	return o.err
}

// Verdict ends the watch: what was seen, and an error if it must never be.
func (o *Observer) Verdict() (string, error) {
	err := o.stop()
	return fmt.Sprintf("%d readings, %d of a holding by best effort", o.eye.Readings, o.eye.BestEffort), err
}

// Stop ends the watch and fails the test for any reading that must never be.
func (o *Observer) Stop(t testing.TB) {
	t.Helper()
	seen, err := o.Verdict()
	if err != nil {
		t.Error(err)
	}
	t.Logf("observer: %s", seen)
	if o.eye.Readings == 0 {
		t.Error("the observer never looked")
	}
}
