package fleet

import (
	"testing"

	"ration/check/expect"
)

// A token gives its version back; one of another Feed, or of none, is before all versions.
func TestParse(t *testing.T) {
	f := NewFeed()
	expect.Equal(t, f.Parse(f.Token(1<<63+7)), 1<<63+7)
	for _, token := range []string{"", "7", "-7", NewFeed().Token(7), f.Token(7)[1:], f.Token(7) + "x", f.mark + "-7", f.mark + "18446744073709551616", f.mark} {
		expect.Equal(t, f.Parse(token), 0, token)
	}
}

// A new version wakes all that wait.
func TestAdvance(t *testing.T) {
	f := NewFeed()
	_, first := f.Latest()
	before, second := f.Latest()
	expect.Equal(t, f.Advance(), before+1, "the next version")
	<-first
	<-second
	now, next := f.Latest()
	select {
	case <-next:
		t.Error("there is no version after the latest")
	default:
	}
	expect.Equal(t, now, before+1)
}
