package region

import (
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// Words of a structure that does not begin on a word fault on arm64, at the first
// atomic operation. They are refused everywhere.
func TestViewsBeginOnAWord(t *testing.T) {
	mem := make([]byte, limitsSize+8) // of more than a word, so it begins on one
	if p := view[abi.Limits](mem); p.Magic != 0 {
		t.Errorf("got %#x", p.Magic)
	}
	for _, at := range []int{1, 2, 4, 7} {
		expect.True(t, panics(func() { view[abi.Limits](mem[at:]) }), "a structure may begin at byte", at)
	}
	expect.True(t, panics(func() { view[abi.Limits](mem[16:]) }), "a structure may be longer than its memory")
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}
