package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// watchFlags are the flags of a command that can print its result repeatedly.
type watchFlags struct {
	enabled  bool
	interval time.Duration
	count    int // how often to print; 0 means until interrupted
}

// minInterval prevents that a mistyped interval loads the machine.
const minInterval = 100 * time.Millisecond

func (f *watchFlags) check(cmd *cobra.Command) error {
	switch {
	case !f.enabled && (cmd.Flags().Changed("interval") || cmd.Flags().Changed("count")):
		return usageError("--interval and --count are for --watch (use them together)")
	case f.interval < minInterval:
		return usageError("--interval %v: too often (use %v or more)", f.interval, minInterval)
	case f.count < 0:
		return usageError("--count %d: not a number of times (use 1 or more, or 0 for no end)", f.count)
	}
	return nil
}

// repeat prints repeatedly. It returns the error of the last round only, because a region that
// could not be read may become readable.
func (f *watchFlags) repeat(a *app, print func(*app) error) error {
	var last error
	for round := 0; f.count == 0 || round < f.count; round++ {
		if round > 0 {
			time.Sleep(f.interval)
		}
		var text bytes.Buffer
		frame := *a
		frame.out = newTerminal(a.out.Writer) // its width may have changed
		frame.out.Writer = &text
		last = print(&frame)
		if last != nil && !errors.Is(last, errReported) && !a.json {
			printError(&text, last)
			last = statusError{errReported, exitStatus(last)}
		}
		if err := writeRound(a, text.Bytes(), round); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
	return last
}

// writeRound writes the output of one round: over the last one on a terminal, as one line of JSON,
// or below the time of day.
func writeRound(a *app, text []byte, round int) error {
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
		height := 24
		if size, err := windowSize(a.out.Writer); err == nil {
			height = int(size.Row)
		}
		redraw(&out, text, round, height, a.out.style(dim, time.Now().Format(time.TimeOnly)))
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

// redraw draws text over the previous round, line by line, because clearing the screen would
// flicker. Nothing scrolls: lines are cut at the terminal's edge, and lines that do not fit are
// left out and counted.
func redraw(out *bytes.Buffer, text []byte, round, height int, heading string) {
	const noWrap, wrap = "\x1b[?7l", "\x1b[?7h"
	out.WriteString("\x1b[H" + noWrap)
	if round == 0 {
		out.WriteString("\x1b[2J")
	}
	lines := append([]string{heading}, strings.Split(strings.TrimRight(string(text), "\n"), "\n")...)
	if room := max(height-1, 1); len(lines) > room { // the cursor stays in the last line
		hidden := len(lines) - room + 1
		lines = lines[:room]
		if room > 1 {
			lines[room-1] = fmt.Sprintf("… %d more lines", hidden)
		}
	}
	for _, line := range lines {
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J" + wrap)
}
