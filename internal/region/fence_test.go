package region

import (
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A request that has read the word before a fence is not granted, whatever limit it has read; what
// is granted stays.
func TestFence(t *testing.T) {
	r, _ := overHeap(t)
	s, err := r.Claim("fenced")
	expect.OK(t, err)
	expect.OK(t, s.Charge(0, abi.Data, 3*abi.Unit))
	l := r.ledger(0)
	before := l.word()
	expect.OK(t, r.SetLimit(0, abi.MakeLimit(3*abi.Unit)))
	held, err := r.Fence(0)
	expect.Must(t, err == nil && held == 3*abi.Unit, held, "bytes are held", err)
	expect.True(t, !l.apply(before, 1, s.index, 1), "a request from before the fence was granted")
	expect.True(t, s.Charge(0, abi.Data, abi.Unit) != nil, "a request after the fence exceeded the limit")
	expect.Equal(t, s.Return(0, abi.Data, 3*abi.Unit), nil)
	held, err = r.Fence(0)
	expect.True(t, err == nil && held == 0, held, "bytes are held", err)
}
