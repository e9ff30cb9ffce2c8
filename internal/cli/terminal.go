package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Styles, as the terminal takes them.
const (
	green = "32"
	red   = "31"
	bold  = "1"
	dim   = "2"
)

// terminal is a place to write to that may be a terminal.
type terminal struct {
	io.Writer
	tty    bool
	colour bool
	width  int
	lost   *error // the first write that did not go through
}

func terminalOf(w io.Writer) terminal {
	t := terminal{Writer: w, width: 80, lost: new(error)}
	f, ok := w.(*os.File)
	if !ok {
		return t
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return t
	}
	t.tty = os.Getenv("TERM") != "dumb"
	t.colour = t.tty && os.Getenv("NO_COLOR") == ""
	if size.Col >= 40 {
		t.width = int(size.Col)
	}
	return t
}

// style wraps text in a style, where there is colour.
func (t terminal) style(style, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (t terminal) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t, format, args...); err != nil && *t.lost == nil {
		*t.lost = err
	}
}

// fault is why something that was printed did not get there.
func (t terminal) fault() error { return *t.lost }

// print writes v as JSON.
func (t terminal) print(v any) error {
	enc := json.NewEncoder(t)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// quiet is how long a command says nothing to something that is no terminal.
const quiet = 5 * time.Second

// progress says what a command is doing: on one line of a terminal that is wiped
// in the end, or now and then in a line of its own.
type progress struct {
	to    terminal
	began time.Time
	last  time.Time
}

func (a *app) progress() *progress {
	now := time.Now()
	return &progress{to: a.err, began: now, last: now}
}

func (p *progress) say(what string) {
	switch {
	case p.to.tty:
		p.to.printf("\r\x1b[K%s", p.to.style(dim, what+" …"))
	case time.Since(p.last) > quiet:
		p.last = time.Now()
		p.to.printf("ration: %3.0f s: %s\n", time.Since(p.began).Seconds(), what)
	}
}

func (p *progress) done() {
	if p.to.tty {
		p.to.printf("\r\x1b[K")
	}
}
