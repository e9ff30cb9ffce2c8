package observer

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

func claim(t *testing.T) (*region.Region, *region.Slot) {
	t.Helper()
	r, err := region.Open(filepath.Join(t.TempDir(), "region"), region.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	s, err := r.Claim("test")
	if err != nil {
		t.Fatal(err)
	}
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
		if err := l.Stop(); !errors.Is(err, io.ErrUnexpectedEOF) || calls != 3 {
			t.Errorf("got %v after %d calls", err, calls)
		}
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
	if err := checkHolding(0, h); err != nil {
		t.Error(err)
	}
	h.Total++
	if err := checkHolding(0, h); !errors.Is(err, ErrViolated) {
		t.Errorf("a total that is no sum: %v", err)
	}
}

func TestStartUsage(t *testing.T) {
	r, s := claim(t)
	u := StartUsage(r, 1, 1<<20, time.Microsecond)
	defer u.Stop()
	if err := s.Charge(1, abi.Data, 2<<20); err != nil {
		t.Fatal(err)
	}
	for u.Changes() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := u.Stop(); err != nil || u.Exceeded == 0 || u.Most != 2<<20 || u.Readings < u.Exceeded {
		t.Errorf("got %+v, %v", u.Tally, err)
	}
}

func TestCheck(t *testing.T) {
	r, s := claim(t)
	c := New(r)
	if err := errors.Join(s.Charge(0, abi.Data, 1<<20), s.Charge(0, abi.Context, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(0, 2<<20); err != nil || c.Readings != 1 {
		t.Errorf("got %v after %d readings", err, c.Readings)
	}
	if err := c.Check(0, 2<<20-abi.Unit); !errors.Is(err, ErrViolated) {
		t.Errorf("one unit above the ceiling: %v", err)
	}
	if err := c.Check(abi.Devices, 0); !errors.Is(err, region.ErrDevice) {
		t.Errorf("no such device: %v", err)
	}
	if b, err := ReadBalance(r, 0); err != nil || b != (Balance{2 << 20, 2 << 20, 1 << 20, 1}) {
		t.Errorf("got %+v, %v", b, err)
	}
	if used, err := c.Balanced(0); err != nil || used != 2<<20 {
		t.Errorf("got %d, %v", used, err)
	}
}
