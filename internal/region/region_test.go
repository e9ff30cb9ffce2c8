package region

import (
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

const MiB = 1 << 20

func limited(bytes uint64) (l Limits) {
	l.Memory[0] = abi.MakeLimit(bytes)
	return l
}

func open(t testing.TB, limit uint64) *Region {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{Limits: limited(limit)})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func claim(t testing.TB, r *Region) *Slot {
	t.Helper()
	s, err := r.Claim(t.Name())
	expect.OK(t, err)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	expect.OK(t, err)
}

// booksAgree checks the ledger's invariant while nothing is under way.
func booksAgree(t testing.TB, r *Region, device int) {
	t.Helper()
	var sum uint64
	for i := range r.m.Accounts[device] {
		a := &r.m.Accounts[device][i]
		u := abi.Used(atomic.LoadUint64(&a.Used))
		sum += u.Units() * abi.Unit
	}
	expect.Equal(t, r.Used(device), sum, "device", device, "bytes granted, accounts hold")
}

func TestChargeAndReturn(t *testing.T) {
	r := open(t, 10*MiB)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, 4*MiB))
	must(t, s.Charge(0, abi.Context, 1))
	got, want := r.Used(0), uint64(4*MiB+abi.Unit)
	expect.Equal(t, got, want, "used", "a byte takes a whole unit")
	must(t, s.Return(0, abi.Context, 1))
	must(t, s.Charge(0, abi.Data, 6*MiB)) // to the last byte
	err := s.Charge(0, abi.Data, 1)
	expect.True(t, errors.Is(err, ErrRefused), "a byte beyond the limit", err)
	must(t, s.Charge(0, abi.Data, 0))
	err = s.Return(0, abi.Context, 1)
	expect.True(t, errors.Is(err, ErrNotHeld), "returning what is not held", err)
	h, err := r.Holdings(0, nil)
	must(t, err)
	expect.True(t, len(h) == 1 && h[0].Total == 10*MiB && h[0].Kind == [abi.Kinds]uint64{0, 0, 10 * MiB, 0} && h[0].Peak == 10*MiB,
		"holdings", h)
	booksAgree(t, r, 0)
	must(t, s.Leave())
	expect.Equal(t, r.Used(0), 0, "used", "after leaving")
	err = s.Charge(0, abi.Data, 1)
	expect.True(t, errors.Is(err, ErrClosed), "charging after leaving", err)
	err = s.Leave()
	expect.True(t, errors.Is(err, ErrClosed), "leaving twice", err)
}

func TestRequestsThatCannotFit(t *testing.T) {
	r := open(t, 1<<40)
	s := claim(t, r)
	for _, bytes := range []uint64{1<<40 + 1, 1 << 41, 1<<64 - 1} {
		err := s.Charge(0, abi.Data, bytes)
		expect.True(t, errors.Is(err, ErrRefused), bytes, "bytes", err)
	}
	if err := s.Charge(1, abi.Data, 1<<60); !errors.Is(err, ErrRefused) {
		t.Errorf("more than the ledger can hold, on a device without limit: %v", err)
	}
	for _, device := range []int{-1, abi.Devices} {
		err := s.Charge(device, abi.Data, 1)
		expect.True(t, errors.Is(err, ErrDevice), "device", device, err)
	}
	booksAgree(t, r, 0)
	booksAgree(t, r, 1)
}

func TestSharesThatFillTheLimitAreNeverRefused(t *testing.T) {
	const threads, rounds = 8, 200
	r, _ := overHeap(t)
	must(t, r.SetLimit(0, abi.MakeLimit(threads*MiB)))
	var wg sync.WaitGroup
	for range threads {
		s := claim(t, r)
		wg.Go(func() {
			for range rounds {
				if err := s.Charge(0, abi.Data, MiB); err != nil {
					t.Error(err)
					return
				}
				if err := s.Return(0, abi.Data, MiB); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	booksAgree(t, r, 0)
}

// Several threads on one slot, and readers beside them: every figure read is in
// one piece. Run under the race detector too.
func TestThreadsShareASlot(t *testing.T) {
	const threads, rounds = 4, 2000
	r, _ := overHeap(t)
	s := claim(t, r)
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var buf []Holding
			for {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if buf, err = r.Holdings(0, buf[:0]); err != nil {
					t.Error(err)
					return
				}
				for _, h := range buf {
					if sum := h.Kind[0] + h.Kind[1] + h.Kind[2] + h.Kind[3]; !h.BestEffort && sum != h.Total {
						t.Errorf("a torn read: %+v", h)
						return
					}
				}
			}
		})
	}
	for i := range threads {
		kind := abi.Kind(i)
		writers.Go(func() {
			for range rounds {
				if err := errors.Join(s.Charge(0, kind, 4096), s.Return(0, kind, 4096)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	booksAgree(t, r, 0)
	expect.Equal(t, r.Used(0), 0, "bytes left over")
}

func TestEverySlotCanBeTakenAndReused(t *testing.T) {
	r := open(t, MiB)
	for round := range 2 {
		var slots []*Slot
		seen := map[int]bool{}
		for range abi.FenceSlot { // all but that one
			s := claim(t, r)
			expect.Must(t, !seen[s.Index()] && s.Index() != abi.FenceSlot, "round", round, "slot", s.Index(), "was given away twice")
			seen[s.Index()] = true
			slots = append(slots, s)
		}
		_, err := r.Claim("one too many")
		expect.True(t, errors.Is(err, ErrFull), "round", round, "one slot more", err)
		for _, s := range slots {
			must(t, s.Leave())
		}
	}
}

func TestAStrangerInTheSlotIsNoticed(t *testing.T) {
	r, m := overHeap(t)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, MiB))
	m.kill(s.Index())
	n, err := r.Reap()
	must(t, err)
	expect.True(t, n == 1 && r.Used(0) == 0, "reaped", n, "slots", r.Used(0), "bytes left")
	err = s.Charge(0, abi.Data, MiB)
	expect.True(t, errors.Is(err, ErrEvicted), "charging a slot that is not ours any more", err)
	err = s.Leave()
	expect.True(t, errors.Is(err, ErrEvicted), "leaving it", err)
	booksAgree(t, r, 0)
}

func TestADeadOnesBytesGoToTheNextWhoNeedsThem(t *testing.T) {
	r, m := overHeap(t)
	must(t, r.SetLimit(0, abi.MakeLimit(8*MiB)))
	dead, alive := claim(t, r), claim(t, r)
	must(t, dead.Charge(0, abi.Data, 8*MiB))
	err := alive.Charge(0, abi.Data, MiB)
	expect.Must(t, errors.Is(err, ErrRefused), "beside a living holder", err)
	m.kill(dead.Index())
	must(t, alive.Charge(0, abi.Data, 8*MiB))
	booksAgree(t, r, 0)
	c, err := r.Counters()
	must(t, err)
	expect.True(t, c.Reaped == 1 && c.Refused == 1, "counters", c)
}
