package termtext_test

import (
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/termtext"
)

func TestFit(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{termtext.PadLeft("ab", 4), "  ab"},
		{termtext.PadRight("ab", 4), "ab  "},
		{termtext.PadRight("日本", 5), "日本 "}, // two cells each
		{termtext.PadLeft("\x1b[1mab\x1b[0m", 3), " \x1b[1mab\x1b[0m"},
		{termtext.PadLeft("abc", 2), "abc"},
		{termtext.Truncate("abcdef", 4, "…"), "abc…"},
		{termtext.Truncate("abcd", 4, "…"), "abcd"},
		{termtext.Truncate("abcd", -1, "…"), ""},
		{termtext.Printable("a\x1b[2Jé\nb"), "a?[2Jé?b"},
		{termtext.Printable("e" + strings.Repeat("\u0301", 6) + "e\u0301\u0302\u0303\u0304"), "e" + strings.Repeat("\u0301", 4) + "??e\u0301\u0302\u0303\u0304"},
		{termtext.Printable("a\u3164b\u2800c\u115fd\u034f한 ไม่ \u202ee"), "a?b?c?d?한 ไม่ ?e"},
		{termtext.ToASCII("→ 3 µs – 4 × 5 … ██▌·· é\x1b[1m"), "> 3 us - 4 x 5 ~ ###.. ?\x1b[1m"},
	} {
		expect.Equal(t, tt.got, tt.want)
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  []string
	}{
		{"one two three", 7, []string{"one two", "three"}},
		{"one two three", 6, []string{"one", "two", "three"}},
		{"held 4 GiB", 6, []string{"held", "4 GiB"}},
		{"by eval (4711)", 8, []string{"by", "eval (4711)"}},
		{"first-second third", 8, []string{"first-second", "third"}},
		{"a  b", 9, []string{"a b"}},
		{"", 9, []string{""}},
	} {
		got := termtext.Wrap(tt.text, tt.width)
		expect.True(t, slices.Equal(got, tt.want), tt.text, got, tt.want)
	}
}

func TestBar(t *testing.T) {
	for _, tt := range []struct {
		glyphs termtext.BarGlyphs
		share  float64
		want   string
		filled int
	}{
		{termtext.Blocks, 0, "····", 0},
		{termtext.Blocks, 0.0001, "▏···", 1}, // more than nothing is visible
		{termtext.Blocks, 0.5, "██··", 2},
		{termtext.Blocks, 0.53125, "██▏·", 3},
		{termtext.Blocks, 1, "████", 4},
		{termtext.Blocks, 2, "████", 4},
		{termtext.ASCII, 0.3, "#...", 1},
		{termtext.ASCII, -1, "....", 0},
	} {
		cells, filled := tt.glyphs.Bar(tt.share, 4)
		got := strings.Join(cells, "")
		expect.True(t, got == tt.want && filled == tt.filled, tt.share, got, filled, "filled, want", tt.want, tt.filled)
	}
}

func TestUTF8Locale(t *testing.T) {
	for _, c := range []struct {
		environ   map[string]string
		utf8, set bool
	}{
		{nil, false, false},
		{map[string]string{"LANG": "de_DE.UTF-8"}, true, true},
		{map[string]string{"LANG": "de_DE.utf8"}, true, true},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, false, true},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true, true},
	} {
		utf8, set := termtext.UTF8Locale(func(name string) string { return c.environ[name] })
		expect.True(t, utf8 == c.utf8 && set == c.set, c.environ, utf8, set)
	}
}
