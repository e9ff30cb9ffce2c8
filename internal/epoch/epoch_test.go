package epoch

import "testing"

// A number comes back as it was given out; whatever another process gave out, or nobody, is before
// all of them.
func TestParse(t *testing.T) {
	e := New()
	if got := e.Parse(e.Text(1<<63 + 7)); got != 1<<63+7 {
		t.Errorf("got %d", got)
	}
	for _, text := range []string{"", "7", "-7", New().Text(7), e.Text(7)[1:], e.Text(7) + "x", string(e) + "--7", string(e) + "-18446744073709551616", string(e) + "-"} {
		if got := e.Parse(text); got != 0 {
			t.Errorf("%q: got %d", text, got)
		}
	}
}
