package region

import (
	"testing"

	"ration/internal/abi"
)

// A request that has read the word before a fence is not granted, whatever limit it has read; what
// is granted stays.
func TestFence(t *testing.T) {
	r, _ := overHeap(t)
	s, err := r.Claim("fenced")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Charge(0, abi.Data, 3*abi.Unit); err != nil {
		t.Fatal(err)
	}
	l := r.ledger(0)
	before := l.word()
	if err := r.SetLimit(0, abi.MakeLimit(3*abi.Unit)); err != nil {
		t.Fatal(err)
	}
	if held, err := r.Fence(0); err != nil || held != 3*abi.Unit {
		t.Fatalf("%d bytes are held, %v", held, err)
	}
	if l.apply(before, 1, s.index, 1) {
		t.Error("a request from before the fence was granted")
	}
	if err := s.Charge(0, abi.Data, abi.Unit); err == nil {
		t.Error("a request after the fence exceeded the limit")
	}
	if err := s.Return(0, abi.Data, 3*abi.Unit); err != nil {
		t.Error(err)
	}
	if held, err := r.Fence(0); err != nil || held != 0 {
		t.Errorf("%d bytes are held, %v", held, err)
	}
}
