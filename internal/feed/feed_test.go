package feed

import "testing"

// A token gives its version back; one of another Feed, or of none, is before all versions.
func TestParse(t *testing.T) {
	f := New()
	if got := f.Parse(f.Token(1<<63 + 7)); got != 1<<63+7 {
		t.Errorf("got %d", got)
	}
	for _, token := range []string{"", "7", "-7", New().Token(7), f.Token(7)[1:], f.Token(7) + "x", f.mark + "-7", f.mark + "18446744073709551616", f.mark} {
		if got := f.Parse(token); got != 0 {
			t.Errorf("%q: got %d", token, got)
		}
	}
}

// A new version wakes all that wait.
func TestAdvance(t *testing.T) {
	f := New()
	_, first := f.Latest()
	before, second := f.Latest()
	if n := f.Advance(); n != before+1 {
		t.Errorf("version %d after %d", n, before)
	}
	<-first
	<-second
	now, next := f.Latest()
	select {
	case <-next:
		t.Error("there is no version after the latest")
	default:
	}
	if now != before+1 {
		t.Errorf("got %d", now)
	}
}
