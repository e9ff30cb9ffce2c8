package observer

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

func claim(t *testing.T) (*region.Region, *region.Slot) {
	t.Helper()
	r, err := region.Open(filepath.Join(t.TempDir(), "region"), region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	s, err := r.Claim("test")
	expect.OK(t, err)
	return r, s
}

func TestLoop(t *testing.T) {
	calls := 0
	l := Start(time.Nanosecond, func() error {
		if calls++; calls == 3 {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	<-l.Ended()
	for range 2 {
		err := l.Stop()
		expect.True(t, errors.Is(err, io.ErrUnexpectedEOF) && calls == 3, err, "after", calls, "calls")
	}
}

// Stop does not wait for the end of a pause.
func TestStopInAPause(t *testing.T) {
	called := make(chan struct{}, 1)
	l := Start(time.Hour, func() error { called <- struct{}{}; return nil })
	<-called
	go l.Stop()
	select {
	case <-l.Ended():
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}

func TestInconsistentHolding(t *testing.T) {
	h := region.Holding{Slot: 3}
	h.Total, h.Kind[abi.Data], h.Kind[abi.Module] = 3, 1, 2
	expect.Equal(t, checkHolding(0, h), nil)
	h.Total++
	err := checkHolding(0, h)
	expect.True(t, errors.Is(err, ErrViolated), "a total that is no sum", err)
}

func TestStartUsage(t *testing.T) {
	r, s := claim(t)
	u := StartUsage(r, 1, 1<<20, time.Microsecond)
	defer u.Stop()
	expect.OK(t, s.Charge(1, abi.Data, 2<<20))
	for u.Changes() == 0 {
		time.Sleep(time.Millisecond)
	}
	err := u.Stop()
	expect.True(t, err == nil && u.Exceeded != 0 && u.Most == 2<<20 && u.Readings >= u.Exceeded, u.Tally, err)
}

func TestCheck(t *testing.T) {
	r, s := claim(t)
	c := New(r)
	expect.OK(t, errors.Join(s.Charge(0, abi.Data, 1<<20), s.Charge(0, abi.Context, 1<<20)))
	err := c.Check(0, 2<<20)
	expect.True(t, err == nil && c.Readings == 1, err, "after", c.Readings, "readings")
	err = c.Check(0, 2<<20-abi.Unit)
	expect.True(t, errors.Is(err, ErrViolated), "one unit above the ceiling", err)
	err = c.Check(abi.Devices, 0)
	expect.True(t, errors.Is(err, region.ErrDevice), "no such device", err)
	b, err := ReadBalance(r, 0)
	expect.True(t, err == nil && b == (Balance{2 << 20, 2 << 20, 1 << 20, 1}), b, err)
	used, err := c.Balanced(0)
	expect.True(t, err == nil && used == 2<<20, used, err)
}
