package cli

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/proc"
	"ration/internal/usage"
	"ration/internal/web"
)

type reportFlags struct {
	since, until string
	by           string
	csv, html    bool
}

func newReportCommand(a *app) *cobra.Command {
	f := reportFlags{}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Report who used the GPUs, and how much",
		Long: `Report how much memory and time of the GPUs was used, from the accounts that the
agent keeps for a year. Root's report is of all users; others see their own
jobs.

  GPU TIME  hours of a device's time in which kernels ran. A job with a cap is
            measured, and the turns of other such jobs are taken out. With
            a mark before it (less or equal) it is an upper bound: turns of
            others may be in it. Of jobs without a cap the driver's samples
            are added up, marked ~
  HELD      memory held over time: 10 GiB for 2 hours are 20 GiB·h
  IDLE      the part of HELD in which the job did no work on the device
  RESERVED  limits over time, while their jobs had not ended
  PEAK      most memory that one job was charged on one device, also for a
            moment by a request that the driver then refused
  REFUSED   requests for memory, and rations that a policy refused to users
  DIED      processes that ended without returning their memory
  ASLEEP    hours for which jobs slept, on each device of which they had memory
            put aside; there if a job slept. They held and reserved nothing then

--since and --until are a time ago (10m, 7d), a day (today, yesterday, monday:
the latest one), or a time (15:04: the latest one, 2026-01-31, 2026-01-31
15:04, 2026-01-31T15:04:05Z). The last hour is kept in steps of ten seconds,
the last day in minutes, and the year in hours: an earlier time is rounded
down to the hour. What happened while no agent ran is not known; the last line
says how much of the time that is.

With --csv, a name that a spreadsheet would take for a formula has a ' before
it.

Exit status: 0; 3 if there are no accounts.`,
		Example: "  ration report\n  ration report --since monday --by job\n  ration report --since 2026-10-01 --until 2026-11-01 --by project --csv > october.csv\n  ration report --since 7d --html > week.html",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runReport(f) },
	}
	cmd.Flags().StringVar(&f.since, "since", "7d", "report from this `time` on")
	cmd.Flags().StringVar(&f.until, "until", "", "report until this `time` (default now)")
	cmd.Flags().StringVar(&f.by, "by", usage.ByUser, "add up by `user|project|job|gpu`")
	cmd.Flags().BoolVar(&f.csv, "csv", false, "print a table of comma-separated values, in bytes and seconds")
	cmd.Flags().BoolVar(&f.html, "html", false, "print a page with plots, in one file that needs no network")
	return cmd
}

func (a *app) runReport(f reportFlags) error {
	now := time.Now()
	from, err := parseTime("--since", f.since, now)
	if err != nil {
		return err
	}
	to := now
	if f.until != "" {
		if to, err = parseTime("--until", f.until, now); err != nil {
			return err
		}
	}
	switch {
	case usage.CheckWay(f.by) != nil:
		return usageError("--by %s: there are %s", f.by, strings.Join(usage.Ways, ", "))
	case !from.Before(to):
		return usageError("--since %s: not before --until", f.since)
	case f.csv && a.json, f.html && (f.csv || a.json):
		return usageError("--csv, --html and --json: choose one")
	case f.html && a.out.tty:
		return usageError("--html writes a file for a browser, not for a terminal (use ration report --html > report.html)")
	}
	report, err := readReport(from, to, f.by, f.html, 0)
	if errors.Is(err, usage.ErrInUse) {
		report, err = readReport(from, to, f.by, f.html, reportPatience)
	}
	if err != nil {
		return err
	}
	switch {
	case f.csv:
		return writeCSV(a, report)
	case f.html:
		return a.writeHTML(report, now)
	}
	return a.print(report, func() { a.showReport(report) })
}

// reportPatience is how long ration report waits for an agent that has the accounts open: nothing else can read them
// meanwhile, and on a busy machine an agent may need many seconds.
const reportPatience = 30 * time.Second

// readReport gets a report from the agent, for which it waits so long (0: for as long as other commands), or, if none
// answers, from its file. It returns ErrInUse if a process has that open, which may be the agent.
func readReport(from, to time.Time, by string, plot bool, wait time.Duration) (usage.Report, error) {
	c, silent := agent.Find()
	if silent == nil {
		if wait > 0 {
			c = c.Patient(wait)
		}
		report, err := c.Report(from, to, by, plot)
		if !errors.Is(err, agent.ErrSilent) {
			return report, err
		}
		silent = err
	}
	s, err := usage.OpenReadOnly(usagePath())
	if errors.Is(err, usage.ErrInUse) && errors.Is(silent, agent.ErrSilent) {
		return usage.Report{}, fmt.Errorf("%w: %w", silent, err)
	}
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			what := "start ration agent: it keeps them from then on"
			if os.Geteuid() != 0 {
				what = "if root's agent keeps them, it does not run now: have root start it; or " + what
			}
			return usage.Report{}, statusError{fmt.Errorf("%w (%s)", err, what), ExitOpen}
		}
		return usage.Report{}, err
	}
	defer s.Close()
	read := s.Report
	if plot {
		read = s.ReportPlot
	}
	return read(from, to, by, func(int) bool { return true })
}

// viewerReport returns a report for the page and for ration top: root's by user, an ordinary user's by job.
func viewerReport(from, to time.Time, plot bool) (usage.Report, error) {
	by := usage.ByUser
	if !job.AllUsers() {
		by = usage.ByJob
	}
	return readReport(from, to, by, plot, 0)
}

// writeHTML writes a report as one file for a browser.
func (a *app) writeHTML(r usage.Report, now time.Time) error {
	scope := ""
	if !job.AllUsers() {
		scope = "jobs of " + proc.UserName(os.Geteuid())
	}
	if r.By == usage.ByGPU {
		nameGPUs(r.Lines, gpuNames())
	}
	var text bytes.Buffer
	if err := web.WriteReport(&text, r, version, scope, now); err != nil {
		return err
	}
	out := a.out
	out.ascii = false // the file says that it is UTF-8
	_, err := out.Write(text.Bytes())
	return err
}

// nameGPUs replaces the UUIDs of devices by the names that people know.
func nameGPUs(lines []usage.Line, names map[string]string) {
	for i := range lines {
		lines[i].GPU = cmp.Or(names[lines[i].GPU], lines[i].GPU)
	}
}

// gpuNames returns the numbers and names of the devices by UUID. A report may have others, as one that was replaced.
func gpuNames() map[string]string {
	names := map[string]string{}
	if driver, err := launch.KnownDevices(); err == nil {
		for _, d := range driver.Devices {
			names[d.UUID] = fmt.Sprintf("%d %s", d.Index, d.Name)
		}
		driver.Close()
	}
	return names
}

// usagePath returns the file of the accounts of this user's agent.
func usagePath() string {
	if job.AllUsers() {
		return agent.UsageFile
	}
	if os.Getenv(job.EnvFolder) != "" {
		return filepath.Join(job.Folder(), job.UsageFile)
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "ration", job.UsageFile)
}

// parseTime reads a time on the command line: so long ago, a day of the week, or a date.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if days, is := strings.CutSuffix(text, "d"); is {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 10_000 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch name := strings.ToLower(text); name {
	case "today":
		return day, nil
	case "yesterday":
		return day.AddDate(0, 0, -1), nil
	default:
		for back := range 7 {
			if d := day.AddDate(0, 0, -back); strings.ToLower(d.Weekday().String()) == name {
				return d, nil
			}
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if at.After(now) {
				return at.AddDate(0, 0, -1), nil
			}
			return at, nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError("%s %q: not a time (use 10m, 7d, 15:04, monday, 2026-01-31, or 2026-01-31T15:04:05Z)", flag, text)
}

// reportColumns are the columns of a report.
func reportColumns(by string, gpus map[string]string) []column[usage.Line] {
	user := column[usage.Line]{"USER", false, func(l usage.Line) string { return l.User }, nil}
	project := column[usage.Line]{"PROJECT", false, func(l usage.Line) string { return cmp.Or(l.Project, "–") }, nil}
	var head []column[usage.Line]
	switch by {
	case usage.ByProject:
		head = []column[usage.Line]{project}
	case usage.ByJob:
		project.needed = func(l usage.Line) bool { return l.Project != "" }
		head = []column[usage.Line]{user, {"JOB", false, func(l usage.Line) string { return l.Job }, nil}, project}
	case usage.ByGPU:
		head = []column[usage.Line]{{"GPU", false, func(l usage.Line) string { return cmp.Or(gpus[l.GPU], l.GPU) }, nil}}
	default:
		head = []column[usage.Line]{user}
	}
	count := func(get func(usage.Line) uint64) (func(usage.Line) string, func(usage.Line) bool) {
		return func(l usage.Line) string { return humanfmt.Count(get(l)) }, func(l usage.Line) bool { return get(l) > 0 }
	}
	refused, anyRefused := count(func(l usage.Line) uint64 { return l.Refused })
	died, anyDied := count(func(l usage.Line) uint64 { return l.Died })
	return append(head,
		column[usage.Line]{"GPU TIME", true, usage.Line.Hours, nil},
		column[usage.Line]{"HELD", true, func(l usage.Line) string { return humanfmt.GiBHours(l.Held) }, nil},
		column[usage.Line]{"IDLE", true, usage.Line.IdlePart, nil},
		column[usage.Line]{"RESERVED", true, func(l usage.Line) string { return humanfmt.GiBHours(l.Reserved) }, nil},
		column[usage.Line]{"PEAK", true, func(l usage.Line) string { return humanfmt.Bytes(l.Peak) }, nil},
		column[usage.Line]{"ASLEEP", true, usage.Line.AsleepHours, func(l usage.Line) bool { return l.Asleep > 0 }},
		column[usage.Line]{"REFUSED", true, refused, anyRefused},
		column[usage.Line]{"DIED", true, died, anyDied})
}

func (a *app) showReport(r usage.Report) {
	const layout = "2006-01-02 15:04"
	a.out.printf("%s to %s\n\n", r.From.Local().Format(layout), r.To.Local().Format(layout))
	if len(r.Lines) == 0 {
		a.out.printf("No job used a GPU.\n")
	} else {
		printTable(a.out, reportColumns(r.By, gpuNames()), r.Lines)
		if len(r.Lines) > 1 {
			t := r.Total
			a.out.printf("\n")
			a.out.paragraph(plain, 0, "Together %s of the GPUs' time; %s held, %s of it idle; %s reserved.", t.Hours(), humanfmt.GiBHours(t.Held), t.IdlePart(), humanfmt.GiBHours(t.Reserved))
		}
	}
	// The report begins at the step in which the time falls that was asked for.
	if all := r.To.Sub(r.From).Truncate(usage.Step); r.Watched < 0.999*all.Seconds() {
		a.out.printf("\n")
		a.out.paragraph(plain, 0, "An agent watched %s of these %s; what happened in the rest is not known.", humanfmt.Span(time.Duration(r.Watched*float64(time.Second))), humanfmt.Span(all))
	}
}

func writeCSV(a *app, r usage.Report) error {
	w := csv.NewWriter(a.out)
	_ = w.Write([]string{"user", "project", "job", "gpu", "gpu_seconds", "sampled_gpu_seconds", "shared_gpu_seconds", "held_byte_seconds", "held_error_byte_seconds", "idle_byte_seconds", "reserved_byte_seconds", "peak_bytes", "refused", "died", "asleep_seconds"})
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	seconds := func(s float64) string { return strconv.FormatFloat(s, 'f', 3, 64) }
	for _, l := range r.Lines {
		_ = w.Write([]string{cellText(l.User), cellText(l.Project), cellText(l.Job), cellText(l.GPU), seconds(l.Seconds), seconds(l.Sampled), seconds(l.Shared), number(l.Held), number(l.Error), number(l.Idle), number(l.Reserved), number(l.Peak), number(l.Refused), number(l.Died), seconds(l.Asleep)})
	}
	w.Flush()
	return w.Error()
}

// cellText returns a text, which a user may have chosen, for a cell of a spreadsheet: a program that opens the table must
// not take it for a formula.
func cellText(text string) string {
	if text != "" && strings.Contains("=+-@\t\r", text[:1]) {
		return "'" + text
	}
	return text
}
