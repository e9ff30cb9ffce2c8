package scenario

import (
	"strings"
	"testing"

	"ration/check/expect"
)

// A terminal that has become narrower has broken the lines of the last frame: all of them
// are erased, and never more than it shows.
func TestEraseAfterResize(t *testing.T) {
	wide := strings.Repeat("x", 60)
	for _, c := range []struct {
		columns, rows int
		want          string
	}{
		{80, 24, "\x1b[3A\x1b[J"},
		{60, 24, "\x1b[3A\x1b[J"},
		{59, 24, "\x1b[5A\x1b[J"},
		{20, 24, "\x1b[7A\x1b[J"},
		{20, 5, "\x1b[4A\x1b[J"},
	} {
		var out strings.Builder
		d := &display{Screen: Screen{Out: &out, Size: func() (int, int) { return c.columns, c.rows }}}
		d.erase()
		d.frame = []string{"", wide, wide}
		d.erase()
		d.erase()
		expect.Equal(t, out.String(), c.want, c.columns, "columns", c.rows, "rows")
	}
}
