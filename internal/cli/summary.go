package cli

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/internal/safepath"
	"ration/internal/termtext"
	"ration/machine"
)

// openSummary opens the output of the summary before the command starts. It returns nil if no
// summary is wanted.
func (a *app) openSummary(name string) (*terminal, error) {
	switch name {
	case "":
		return nil, nil
	case summaryStderr:
		return &a.err, nil
	case "-":
		return &a.out, nil
	}
	create := os.Create // the file is never closed: we write one table to it, then exit
	if os.Geteuid() == 0 {
		create = safepath.Create // other users may be able to write the folder
	}
	file, err := create(name)
	if err != nil {
		return nil, fmt.Errorf("--summary: %w", err)
	}
	to := newTerminal(file)
	return &to, nil
}

// printSummary prints the summary to out, because standard output belongs to the command.
func (a *app) printSummary(out terminal, s launch.Summary) error {
	if a.json {
		return out.printJSON(s)
	}
	ended := fmt.Sprintf("exit status %d", s.Status)
	if s.Signal != 0 {
		ended = fmt.Sprintf("ended by signal %d (%v)", s.Signal, syscall.Signal(s.Signal))
	}
	out.printf("%s  %s, %s s\n", out.style(bold, s.Job), ended, humanfmt.Three(s.Seconds))
	if s.Error != "" {
		out.paragraph(red, 2, "%s", s.Error)
	}
	if s.Shared {
		out.paragraph(plain, 2, "These figures are of all your programs, which are in one job here (with --mem a command has a job of its own).")
	}
	for _, d := range s.Devices {
		if d.Peak == 0 && d.Refused == 0 {
			continue
		}
		line := fmt.Sprintf("device %d  peak %s", d.Device, humanfmt.Bytes(d.Peak))
		if d.Limited && d.Limit > 0 {
			line += fmt.Sprintf(" of %s (%.0f %%), %s refused, %s s at the limit", humanfmt.Bytes(d.Limit),
				100*float64(d.Peak)/float64(d.Limit), humanfmt.Count(d.Refused), humanfmt.Three(d.AtLimit))
		}
		if c := d.Compute; c != nil {
			line += ", compute " + c.Short()
			if c.Max != 0 {
				line += fmt.Sprintf(" (used %s, waited %s)", humanfmt.Span(time.Duration(c.Used)), humanfmt.Span(time.Duration(c.Waited)))
			}
		}
		out.printf("  %s\n", line)
	}
	if len(s.Processes) > 0 {
		printTable(out, peakColumns, s.Processes)
	}
	for _, p := range s.Processes {
		if p.NotEnforced != "" {
			out.paragraph(bold, 2, "device %d: the share was not enforced in pid %s: %s", p.Device, humanfmt.Claim(fmt.Sprint(p.PID), p.Verified), p.NotEnforced)
		}
	}
	if slices.ContainsFunc(s.Processes, func(p launch.Peak) bool { return !p.Verified }) {
		out.paragraph(dim, 2, "%s.", humanfmt.ClaimNote)
	}
	switch {
	case s.Unrecorded > 0:
		out.printf("  processes that held nothing, or ended too soon to be recorded: %d\n", s.Unrecorded)
	case len(s.Processes) == 0:
		out.printf("  no process held anything\n")
	}
	if s.Refused() > 0 {
		out.printf("  %s\n", out.style(dim, "what was refused, and which processes held the rest: ration why "+s.Job))
	}
	if err := *out.writeErr; err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

var peakColumns = []column[launch.Peak]{
	{"PID", true, func(p launch.Peak) string { return humanfmt.Claim(fmt.Sprint(p.PID), p.Verified) }, nil},
	{"DEVICE", true, func(p launch.Peak) string { return fmt.Sprint(p.Device) }, func(p launch.Peak) bool { return p.Device > 0 }},
	kindColumn("CONTEXT", func(p launch.Peak) uint64 { return p.Context }),
	kindColumn("MODULE", func(p launch.Peak) uint64 { return p.Module }),
	kindColumn("DATA", func(p launch.Peak) uint64 { return p.Data }),
	kindColumn("DRIVER", func(p launch.Peak) uint64 { return p.Overhead }),
	{"PEAK", true, func(p launch.Peak) string { return humanfmt.Short(p.Total) }, nil},
	{"SLICE", true, peakSliceText, func(p launch.Peak) bool { return p.Slice > 0 || p.NotEnforced != "" }},
	{"USED", true, func(p launch.Peak) string { return node.ShortTime(p.TimeUsed) }, func(p launch.Peak) bool { return p.TimeUsed > 0 }},
	{"WAITED", true, func(p launch.Peak) string { return node.ShortTime(p.TimeWaited) }, func(p launch.Peak) bool { return p.TimeWaited > 0 }},
	{"NAME", false, func(p launch.Peak) string { return humanfmt.Claim(termtext.Printable(p.Name), p.Verified) }, nil},
}

// peakSliceText formats the last time slice of a process, or says that its share was not enforced.
func peakSliceText(p launch.Peak) string {
	switch {
	case p.NotEnforced != "":
		return machine.NotEnforced
	case p.Slice == 0:
		return "-"
	}
	return node.ShortTime(p.Slice * uint64(time.Microsecond))
}

// kindColumn is the column of one kind of memory.
func kindColumn(title string, bytes func(launch.Peak) uint64) column[launch.Peak] {
	return column[launch.Peak]{title, true, func(p launch.Peak) string {
		if p.Context+p.Module+p.Data+p.Overhead == 0 {
			return "?" // it ended before its kinds were recorded
		}
		return humanfmt.Short(bytes(p))
	}, func(p launch.Peak) bool { return bytes(p) > 0 }}
}
