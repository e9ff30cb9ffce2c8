package region

import (
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func claim(t testing.TB, r *Region) *Slot {
	t.Helper()
	s, err := r.Claim(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
	if used := r.Used(device); used != sum {
		t.Errorf("device %d: %d bytes granted, accounts hold %d", device, used, sum)
	}
}

func TestChargeAndReturn(t *testing.T) {
	r := open(t, 10*MiB)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, 4*MiB))
	must(t, s.Charge(0, abi.Context, 1))
	if got, want := r.Used(0), uint64(4*MiB+abi.Unit); got != want {
		t.Errorf("used %d, want %d: a byte takes a whole unit", got, want)
	}
	must(t, s.Return(0, abi.Context, 1))
	must(t, s.Charge(0, abi.Data, 6*MiB)) // to the last byte
	if err := s.Charge(0, abi.Data, 1); !errors.Is(err, ErrRefused) {
		t.Errorf("a byte beyond the limit: %v", err)
	}
	must(t, s.Charge(0, abi.Data, 0))
	if err := s.Return(0, abi.Context, 1); !errors.Is(err, ErrNotHeld) {
		t.Errorf("returning what is not held: %v", err)
	}
	h, err := r.Holdings(0, nil)
	must(t, err)
	if len(h) != 1 || h[0].Total != 10*MiB || h[0].Kind != [abi.Kinds]uint64{0, 0, 10 * MiB, 0} || h[0].Peak != 10*MiB {
		t.Errorf("holdings %+v", h)
	}
	booksAgree(t, r, 0)
	must(t, s.Leave())
	if got := r.Used(0); got != 0 {
		t.Errorf("used %d after leaving", got)
	}
	if err := s.Charge(0, abi.Data, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("charging after leaving: %v", err)
	}
	if err := s.Leave(); !errors.Is(err, ErrClosed) {
		t.Errorf("leaving twice: %v", err)
	}
}

func TestRequestsThatCannotFit(t *testing.T) {
	r := open(t, 1<<40)
	s := claim(t, r)
	for _, bytes := range []uint64{1<<40 + 1, 1 << 41, 1<<64 - 1} {
		if err := s.Charge(0, abi.Data, bytes); !errors.Is(err, ErrRefused) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if err := s.Charge(1, abi.Data, 1<<60); !errors.Is(err, ErrRefused) {
		t.Errorf("more than the ledger can hold, on a device without limit: %v", err)
	}
	for _, device := range []int{-1, abi.Devices} {
		if err := s.Charge(device, abi.Data, 1); !errors.Is(err, ErrDevice) {
			t.Errorf("device %d: %v", device, err)
		}
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
	if used := r.Used(0); used != 0 {
		t.Errorf("%d bytes left over", used)
	}
}

func TestEverySlotCanBeTakenAndReused(t *testing.T) {
	r := open(t, MiB)
	for round := range 2 {
		var slots []*Slot
		seen := map[int]bool{}
		for range abi.FenceSlot { // all but that one
			s := claim(t, r)
			if seen[s.Index()] || s.Index() == abi.FenceSlot {
				t.Fatalf("round %d: slot %d was given away twice", round, s.Index())
			}
			seen[s.Index()] = true
			slots = append(slots, s)
		}
		if _, err := r.Claim("one too many"); !errors.Is(err, ErrFull) {
			t.Errorf("round %d: one slot more: %v", round, err)
		}
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
	if n != 1 || r.Used(0) != 0 {
		t.Errorf("reaped %d slots, %d bytes left", n, r.Used(0))
	}
	if err := s.Charge(0, abi.Data, MiB); !errors.Is(err, ErrEvicted) {
		t.Errorf("charging a slot that is not ours any more: %v", err)
	}
	if err := s.Leave(); !errors.Is(err, ErrEvicted) {
		t.Errorf("leaving it: %v", err)
	}
	booksAgree(t, r, 0)
}

func TestADeadOnesBytesGoToTheNextWhoNeedsThem(t *testing.T) {
	r, m := overHeap(t)
	must(t, r.SetLimit(0, abi.MakeLimit(8*MiB)))
	dead, alive := claim(t, r), claim(t, r)
	must(t, dead.Charge(0, abi.Data, 8*MiB))
	if err := alive.Charge(0, abi.Data, MiB); !errors.Is(err, ErrRefused) {
		t.Fatalf("beside a living holder: %v", err)
	}
	m.kill(dead.Index())
	must(t, alive.Charge(0, abi.Data, 8*MiB))
	booksAgree(t, r, 0)
	c, err := r.Counters()
	must(t, err)
	if c.Reaped != 1 || c.Refused != 1 {
		t.Errorf("counters %+v", c)
	}
}
