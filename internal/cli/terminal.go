package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ration/internal/termtext"
)

// Styles, as parameters of the terminal's escape sequence.
const (
	green = "32"
	red   = "31"
	bold  = "1"
	dim   = "2"
	plain = ""
)

// terminal is an output that may be a terminal.
type terminal struct {
	io.Writer
	tty      bool
	colour   bool
	ascii    bool   // shows only ASCII
	width    int    // in cells; 80 if it is not a terminal
	writeErr *error // first failed write
}

func newTerminal(w io.Writer) terminal {
	utf8, set := termtext.UTF8Locale(os.Getenv)
	t := terminal{Writer: w, width: 80, ascii: set && !utf8, writeErr: new(error)}
	size, err := windowSize(w)
	if err != nil {
		return t
	}
	t.ascii = !utf8
	t.tty = os.Getenv("TERM") != "dumb"
	t.colour = t.tty && os.Getenv("NO_COLOR") == ""
	if size.Col >= 40 {
		t.width = int(size.Col)
	}
	return t
}

// windowSize returns the size of a terminal, or an error for any other output.
func windowSize(w io.Writer) (*unix.Winsize, error) {
	f, ok := w.(*os.File)
	if !ok {
		return nil, unix.ENOTTY
	}
	return unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
}

// size returns the current columns and rows of a terminal; 80 and 24 if it does not report them.
func (t terminal) size() (columns, rows int) {
	size, err := windowSize(t.Writer)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

// style returns text in a style, if the terminal has colours.
func (t terminal) style(style, text string) string {
	if !t.colour || style == plain {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (t terminal) Write(p []byte) (int, error) {
	text := p
	if t.ascii {
		text = []byte(termtext.ToASCII(string(p)))
	}
	if _, err := t.Writer.Write(text); err != nil {
		if *t.writeErr == nil {
			*t.writeErr = err
		}
		return 0, err
	}
	return len(p), nil
}

func (t terminal) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t, format, args...) // Write records the error
}

func (t terminal) printJSON(v any) error {
	t.ascii = false // JSON is UTF-8 in every locale
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if err == nil {
		_, err = t.Write(escapeJSON(text.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// escapeJSON escapes characters that JSON allows unescaped but that a terminal might obey: DEL, the
// control characters above it, and those that change the direction of text. They occur only inside
// strings.
func escapeJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, c := range string(text) {
		if c == '\n' || unicode.IsPrint(c) {
			out = utf8.AppendRune(out, c)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, c) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

// wrap wraps text to the width of a terminal. Lines after the first are indented. Without a
// terminal it returns one line.
func (t terminal) wrap(text string, indent int) string {
	if !t.tty {
		return text
	}
	return strings.Join(termtext.Wrap(text, t.width-indent), "\n"+strings.Repeat(" ", indent))
}

// paragraph prints text in a style, wrapped and indented. It removes control characters.
func (t terminal) paragraph(style string, indent int, format string, args ...any) {
	text := t.wrap(termtext.Printable(fmt.Sprintf(format, args...)), indent)
	t.printf("%*s%s\n", indent, "", t.style(style, text))
}

// bar draws a fraction between 0 and 1.
func (t terminal) bar(share float64, width int) string {
	glyphs := termtext.Blocks
	if t.ascii {
		glyphs = termtext.ASCII
	}
	cells, filled := glyphs.Bar(share, width)
	return strings.Join(cells[:filled], "") + t.style(dim, strings.Join(cells[filled:], ""))
}

// progressInterval is how often progress prints a line without a terminal.
const progressInterval = 5 * time.Second

// progress shows what a long command is doing. On a terminal it uses one line, which is erased at
// the end. Otherwise it prints a line every progressInterval.
type progress struct {
	out     terminal
	started time.Time
	printed time.Time
}

func (a *app) progress() *progress {
	now := time.Now()
	return &progress{out: a.err, started: now, printed: now}
}

func (p *progress) show(text string) {
	switch {
	case p.out.tty:
		p.out.printf("\r\x1b[K%s", p.out.style(dim, text+" …"))
	case time.Since(p.printed) > progressInterval:
		p.printed = time.Now()
		p.out.printf("ration: %3.0f s: %s\n", time.Since(p.started).Seconds(), text)
	}
}

func (p *progress) erase() {
	if p.out.tty {
		p.out.printf("\r\x1b[K")
	}
}
