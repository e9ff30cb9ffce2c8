package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// watch shows something again and again, in plain text: also where there is no
// terminal, or one that knows no more than to move its cursor home.
type watch struct {
	on    bool
	every time.Duration
	count int
}

// leastInterval keeps a slip of the finger from being a load.
const leastInterval = 100 * time.Millisecond

func (w *watch) check(cmd *cobra.Command) error {
	switch {
	case !w.on && (cmd.Flags().Changed("interval") || cmd.Flags().Changed("count")):
		return usage("--interval and --count are for --watch (use them together)")
	case w.every < leastInterval:
		return usage("--interval %v: too often (use %v or more)", w.every, leastInterval)
	case w.count < 0:
		return usage("--count %d: not a number of times (use 1 or more, or 0 for no end)", w.count)
	}
	return nil
}

// run shows until it has shown often enough. What went wrong in the last round
// decides how the command ends; an unreadable region may well be readable again.
func (w *watch) run(a *app, show func(*app) error) error {
	var last error
	for i := 0; w.count == 0 || i < w.count; i++ {
		if i > 0 {
			time.Sleep(w.every)
		}
		var text bytes.Buffer
		frame := *a
		frame.out = terminalOf(a.out.Writer) // it may have another width by now
		frame.out.Writer = &text
		last = show(&frame)
		if last != nil && !errors.Is(last, errSaid) && !a.json {
			complain(&text, last)
			last = statusError{errSaid, statusOf(last)}
		}
		if err := w.write(a, text.Bytes(), i); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
	return last
}

func (w *watch) write(a *app, text []byte, round int) error {
	var out bytes.Buffer
	switch {
	case a.json && len(text) == 0:
		return nil
	case a.json:
		if err := json.Compact(&out, text); err != nil {
			return err
		}
		out.WriteByte('\n')
	case a.out.tty:
		drawOver(&out, text, round, heightOf(a.out))
	default:
		if round > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(time.Now().Format(time.TimeOnly) + "\n")
		out.Write(text)
	}
	_, err := a.out.Write(out.Bytes())
	return err
}

// drawOver draws text over what was drawn before, line by line and without
// clearing the screen first, so that nothing flickers.
func drawOver(out *bytes.Buffer, text []byte, round, height int) {
	out.WriteString("\x1b[H")
	if round == 0 {
		out.WriteString("\x1b[2J")
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if room := height - 2; len(lines) > room && room > 0 {
		left := len(lines) - room
		lines = append(lines[:room], fmt.Sprintf("… %d lines more", left))
	}
	for _, line := range lines {
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
}

func heightOf(t terminal) int {
	if f, ok := t.Writer.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(size.Row)
		}
	}
	return 24
}
