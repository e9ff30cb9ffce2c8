package region

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// inSlot claims until it has the slot of that number.
func inSlot(t *testing.T, r *Region, index int) *Slot {
	t.Helper()
	for range abi.FenceSlot {
		if s := claim(t, r); s.Index() == index {
			return s
		}
	}
	t.Fatalf("slot %d cannot be had", index)
	return nil
}

// An owner that lost its lock, was reaped, and whose slot another process has by
// now, touches nothing of the new owner's: neither where it held something nor
// where it comes for the first time.
func TestAnEvictedOwnerTouchesNothing(t *testing.T) {
	r, m := overHeap(t)
	old := claim(t, r)
	must(t, old.Charge(0, abi.Data, MiB))
	m.kill(old.Index())
	if n, err := r.Reap(); n != 1 || err != nil {
		t.Fatalf("reaped %d, %v", n, err)
	}
	heir := inSlot(t, r, old.Index())
	for device := range 2 {
		must(t, heir.Charge(device, abi.Data, 2*MiB))
		for what, err := range map[string]error{
			"charge": old.Charge(device, abi.Data, 512), "return": old.Return(device, abi.Data, 512),
		} {
			expect.True(t, errors.Is(err, ErrEvicted), "device", device, what, err)
		}
	}
	if err := old.Leave(); !errors.Is(err, ErrEvicted) {
		t.Errorf("leave: %v", err)
	}
	for device := range 2 {
		h, err := r.Holdings(device, nil)
		must(t, err)
		held := uint64(0)
		for _, one := range h {
			held += one.Total
		}
		expect.True(t, held == 2*MiB && r.Used(device) == 2*MiB, "device", device, held, "held", r.Used(device), "granted")
		must(t, heir.Return(device, abi.Data, 2*MiB))
		booksAgree(t, r, device)
	}
}

// Leaving while other threads charge, on devices they may be the first to touch,
// leaves nothing behind.
func TestLeavingWhileThreadsCharge(t *testing.T) {
	r, _ := overHeap(t)
	for round := range 200 {
		s := claim(t, r)
		var threads sync.WaitGroup
		for n := range 3 {
			threads.Go(func() {
				for i := 0; ; i++ {
					device := (n + i) % 4
					err := s.Charge(device, abi.Data, 4096)
					if err == nil && i%2 == 0 {
						err = s.Return(device, abi.Data, 4096)
					}
					if errors.Is(err, ErrClosed) || errors.Is(err, ErrNotHeld) || errors.Is(err, ErrEvicted) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		must(t, s.Leave())
		threads.Wait()
		for device := range 4 {
			used := r.Used(device)
			expect.Must(t, used == 0, "round", round, "device", device, used, "bytes left behind")
		}
	}
}

func TestAPredecessorsPeakIsNotOurs(t *testing.T) {
	r, m := overHeap(t)
	old := claim(t, r)
	must(t, old.Charge(0, abi.Data, MiB))
	m.kill(old.Index())
	_, err := r.Reap()
	must(t, err)
	heir := inSlot(t, r, old.Index())
	h, err := r.Holdings(0, nil)
	must(t, err)
	for _, one := range h {
		expect.True(t, one.Slot != heir.Index() || one.Peak == 0 && one.Total == 0, "a new process begins with", one)
	}
}

// Limits beside a region count, whatever the region says; limits of a stranger's are
// none.
func TestLimitsBeside(t *testing.T) {
	r := open(t, MiB)
	must(t, WriteLimitsFile(r.Path(), limited(1<<30)))
	for _, flags := range []uint32{abi.LimitsInside, abi.LimitsBeside, 0} {
		atomic.StoreUint32(&r.m.Header.Flags, flags)
		for _, open := range []func() (*Region, error){
			func() (*Region, error) { return Open(r.Path(), Options{}) },
			func() (*Region, error) { return OpenReadOnly(r.Path()) },
			func() (*Region, error) { return OpenMapped(r.Path()) },
		} {
			again, err := open()
			must(t, err)
			l, err := again.Limit(0)
			expect.True(t, err == nil && l.Bytes() == 1<<30, "flags", flags, "the limit is", l.Bytes(), err)
			must(t, again.Close())
		}
	}
	must(t, os.Remove(r.Path()+LimitsSuffix))
	atomic.StoreUint32(&r.m.Header.Flags, abi.LimitsBeside)
	for _, open := range []func(string) (*Region, error){OpenReadOnly, OpenMapped} {
		_, err := open(r.Path())
		expect.True(t, errors.Is(err, ErrLimits), "limits that are missing", err)
	}

	path := filepath.Join(t.TempDir(), "region")
	must(t, WriteLimitsFile(path, limited(1<<30)))
	must(t, os.Chmod(path+LimitsSuffix, 0o666))
	if _, err := Open(path, Options{}); !errors.Is(err, ErrLimits) {
		t.Errorf("limits that anybody may write: %v", err)
	}
	if os.Geteuid() == 0 {
		must(t, os.Chmod(path+LimitsSuffix, 0o644))
		must(t, os.Chown(path+LimitsSuffix, 12345, 12345))
		_, err := Open(path, Options{})
		expect.True(t, errors.Is(err, ErrLimits), "limits of a stranger", err)
	}
}
