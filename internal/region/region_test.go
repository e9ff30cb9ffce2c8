package region

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"ration/internal/abi"
)

func open(t testing.TB, limit uint64) *Region {
	t.Helper()
	var l Limits
	l.Memory[0] = abi.MakeLimit(limit, 0)
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{Limits: l})
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

func BenchmarkAdd(b *testing.B) {
	var x uint64
	for range b.N {
		atomic.AddUint64(&x, 1)
	}
}

func BenchmarkCharge(b *testing.B) {
	r := open(b, 1<<40)
	s := claim(b, r)
	for i := range b.N {
		if i%2 == 0 {
			if err := s.Charge(0, abi.Data, 4096); err != nil {
				b.Fatal(err)
			}
		} else if err := s.Return(0, abi.Data, 4096); err != nil {
			b.Fatal(err)
		}
	}
}
