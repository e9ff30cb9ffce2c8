package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/reap"
	"ration/internal/termtext"
	"ration/internal/utilization"
	"ration/machine"
)

type psFlags struct {
	region   string // path; empty: all jobs
	readOnly bool
	watch    watchFlags
}

func newPsCommand(a *app) *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show jobs, their limits and their processes",
		Long: `Show each job's devices, with their limits and usage, and its processes, with
what each of them holds. A job's limits and accounts are in a file, its region;
SLOT is the number of a process's account in it. DRIFT is how much more the
driver counts for a process at this moment; it is left out where there is no
driver to ask.

Who a process is, the kernel says. A PID or name with a ? before it is only what
the job says: its process has ended, or cannot be seen from here.

Jobs are found in the folder of this user's jobs: /run/ration for root, and
$XDG_RUNTIME_DIR/ration or ${TMPDIR:-/tmp}/ration-UID for others. ` + job.EnvFolder + `
names another folder, and ` + job.EnvRegion + ` one more region.

What processes hold that died without returning it is returned to the job first,
where you may write its region. With --read-only nothing is changed.

With --watch the jobs are shown repeatedly, until ration is interrupted or as
often as --count says: in place on a terminal, one after the other elsewhere,
and with --json as one line of JSON each time. Then TIME is what a process had
of its device's time: measured where there is a cap, otherwise averages of the
driver's samples over five seconds or more, marked with ~ ("about" in JSON),
which may be wrong by several points.

Exit status: 0, also without any job; 3 if a region could not be read. The other
jobs are shown all the same.`,
		Example: "  ration ps\n  ration ps --watch --interval 5s\n  ration ps --json --region /run/ration/train/region",
		Args:    noArgs,
		RunE:    withStatus(func(cmd *cobra.Command, _ []string) error { return a.runPs(cmd, f) }),
	}
	cmd.Flags().BoolVarP(&f.watch.enabled, "watch", "w", false, "show the jobs repeatedly")
	cmd.Flags().DurationVarP(&f.watch.interval, "interval", "i", time.Second, "how long --watch waits in between")
	cmd.Flags().IntVarP(&f.watch.count, "count", "n", 0, "how often --watch shows the jobs; 0 is until interrupted")
	cmd.Flags().StringVar(&f.region, "region", "", "show only the job with the region at this `path`")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing, not even what dead processes hold")
	return cmd
}

func (a *app) runPs(cmd *cobra.Command, f psFlags) error {
	if err := f.watch.check(cmd); err != nil {
		return err
	}
	opts := reap.Options{ReadOnly: f.readOnly}
	print := func(a *app) error { return a.printAllJobs(opts) }
	if cmd.Flags().Changed("region") {
		print = func(a *app) error { return a.printJobAt(f.region, opts) }
	}
	if f.watch.enabled {
		a.meter = utilization.New()
		defer a.meter.Close()
		return f.watch.repeat(a, print)
	}
	return print(a)
}

// printJobAt prints the job of one region. It is an error if that cannot be read.
func (a *app) printJobAt(path string, opts reap.Options) error {
	s := reap.ReadJob(job.Job{Path: path}, opts)
	addDriverUsage([]machine.Job{s})
	a.addTime([]machine.Job{s})
	if a.json {
		if err := a.out.printJSON(machine.Machine{Folder: job.Folder(), Jobs: []machine.Job{s}}); err != nil {
			return err
		}
	}
	if s.Err() != nil {
		return statusError{s.Err(), ExitOpen}
	}
	if !a.json {
		a.printJob(s)
		a.printClaimNote([]machine.Job{s})
	}
	return nil
}

func (a *app) printAllJobs(opts reap.Options) error {
	m, err := reap.Read(opts)
	if err != nil {
		return statusError{err, ExitOpen}
	}
	for _, s := range m.Jobs {
		if s.Err() != nil {
			err = statusError{errReported, ExitOpen}
		}
	}
	addDriverUsage(m.Jobs)
	a.addTime(m.Jobs)
	if a.json {
		return errors.Join(a.out.printJSON(m), err)
	}
	if len(m.Jobs) == 0 {
		a.out.printf("There are no jobs in %s. (`ration demo` shows one at work.)\n", m.Folder)
	}
	for i, s := range m.Jobs {
		if i > 0 {
			a.out.printf("\n")
		}
		a.printJob(s)
	}
	a.printClaimNote(m.Jobs)
	return err
}

// printClaimNote explains the mark of claims, where there is one.
func (a *app) printClaimNote(jobs []machine.Job) {
	if slices.ContainsFunc(jobs, showsClaims) {
		a.out.printf("\n%s\n", a.out.style(dim, a.out.wrap(humanfmt.ClaimNote+".", 0)))
	}
}

// showsClaims reports whether printJob marks anything of a job as a claim.
func showsClaims(s machine.Job) bool {
	claims := slices.ContainsFunc(s.Processes, func(p machine.Process) bool { return !p.Verified }) || len(s.Reaped)+len(s.Deaths) > 0
	return claims || len(s.Refusals) > 0 && strings.Contains(s.Refusals[0].Sentence(append(s.Processes, s.Reaped...)), humanfmt.ClaimMark)
}

func (a *app) printJob(s machine.Job) {
	title := a.out.style(dim, termtext.Printable(s.Path))
	if s.Name != "" {
		title = a.out.style(bold, s.Name) + "  " + title
	}
	a.out.printf("%s\n", title)
	if s.Err() != nil {
		a.out.printf("  %s\n", a.out.style(red, a.out.wrap(termtext.Printable(s.Error), 2)))
		return
	}
	for _, d := range s.Devices {
		a.out.printf("  %s\n", a.deviceLine(d))
		if d.Compute != nil {
			a.out.printf("    %s\n", a.out.wrap(d.Compute.Sentence(), 4))
		}
	}
	if len(s.Devices) == 0 {
		a.out.printf("  no limits, and nothing was ever used\n")
	}
	a.printProcesses(s.Processes)
	for _, d := range s.Devices {
		for _, text := range notEnforced(s, d.Device) {
			a.out.printf("  %s\n", a.out.style(bold, a.out.wrap(fmt.Sprintf("device %d: its share is %s", d.Device, termtext.Printable(text)), 2)))
		}
	}
	for _, p := range s.Reaped {
		a.out.printf("  pid %s (%s) was dead: returned %s to the job\n", humanfmt.Claim(fmt.Sprint(p.PID), false), termtext.Printable(p.Name), humanfmt.Bytes(heldBytes(p)))
	}
	if len(s.Deaths) > 0 && len(s.Reaped) == 0 {
		ago := max(0, time.Since(time.Unix(0, s.Deaths[0].Time))).Round(time.Second)
		a.out.printf("  %s\n", a.out.wrap(termtext.Printable(fmt.Sprintf("last death, %v ago: %s", ago, s.Deaths[0].Sentence())), 2))
	}
	if s.Damaged > 0 {
		a.out.printf("  %s\n", a.out.style(red, a.out.wrap(fmt.Sprintf(
			"%d slots hold what cannot be, and are out of use; what they hold stays counted (end the job and remove it)", s.Damaged), 2)))
	}
	if len(s.Refusals) > 0 {
		f := s.Refusals[0]
		ago := max(0, time.Since(time.Unix(0, f.Time))).Round(time.Second)
		a.out.printf("  %s\n", a.out.wrap(termtext.Printable(fmt.Sprintf("last refusal, %v ago, on device %d: %s",
			ago, f.Device, f.Sentence(append(s.Processes, s.Reaped...)))), 2))
	}
	if r := s.Reads; r.BestEffort > 0 {
		a.out.printf("  %s of %s reads were best effort\n", humanfmt.Count(r.BestEffort), humanfmt.Count(r.Reads))
	}
}

// deviceLine renders a device in one line, with a bar on a terminal.
func (a *app) deviceLine(d machine.Device) string {
	line := fmt.Sprintf("device %d  ", d.Device)
	if !d.Limited {
		line += fmt.Sprintf("%s used, no limit, peak %s", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Peak))
		if d.Inexact {
			line += ", while its processes changed"
		}
		return line
	}
	share := 0.0
	if d.Limit > 0 {
		share = float64(d.Used) / float64(d.Limit)
	}
	if a.out.tty {
		line += a.out.bar(share, 20) + "  "
	}
	line += fmt.Sprintf("%s of %s (%.0f %%), peak %s", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Limit), 100*share, humanfmt.Bytes(d.Peak))
	if d.Inexact {
		line += ", while its processes changed"
	}
	if d.Tolerance > 0 {
		line += fmt.Sprintf(", may exceed it by %s", humanfmt.Percent(float64(d.Tolerance)/10))
	}
	return line
}

// drift renders how much more, or less, the driver counts for a process than we do: only
// as it counts now, since what a process read of it earlier was of what it held then.
func drift(h machine.Holding) string {
	switch {
	case !h.DriverNow:
		return "-"
	case h.Driver >= h.Total:
		return "+" + humanfmt.Short(h.Driver-h.Total)
	}
	return "-" + humanfmt.Short(h.Total-h.Driver)
}

// addDriverUsage replaces what the processes have recorded of the driver's count by
// what the driver reports now, where there is a driver.
func addDriverUsage(jobs []machine.Job) {
	driver, err := gpu.Open("")
	if err != nil {
		return
	}
	defer driver.Close()
	reported, err := driver.Processes()
	if err != nil {
		return
	}
	for _, s := range jobs {
		for _, p := range s.Processes {
			for i := range p.Holdings {
				for _, r := range reported {
					if r.PID == p.HostPID && r.Device == p.Holdings[i].Device {
						p.Holdings[i].Driver, p.Holdings[i].DriverNow = r.Used, true
					}
				}
			}
		}
	}
}

// addTime adds how much of their devices' time processes had, where they are looked at
// again and again.
func (a *app) addTime(jobs []machine.Job) {
	if a.meter != nil {
		a.meter.Add(jobs, time.Now())
	}
}

func heldBytes(p machine.Process) (n uint64) {
	for _, h := range p.Holdings {
		n += h.Total
	}
	return n
}

// processRow is a process and its use of one device.
type processRow struct {
	machine.Process
	machine.Holding
}

// claim marks what only the job says of a process.
func claim(r processRow, text string) string { return humanfmt.Claim(text, r.Verified) }

var processColumns = []column[processRow]{
	{"SLOT", true, func(r processRow) string { return fmt.Sprint(r.Slot) }, nil},
	{"PID", true, func(r processRow) string { return claim(r, fmt.Sprint(r.PID)) }, nil},
	{"HOST PID", true, func(r processRow) string { return claim(r, fmt.Sprint(r.HostPID)) }, func(r processRow) bool { return r.HostPID != 0 && r.HostPID != r.PID }},
	{"USER", false, func(r processRow) string { return r.User }, nil},
	{"STATE", false, func(r processRow) string { return r.State }, nil},
	{"DEVICE", true, func(r processRow) string { return fmt.Sprint(r.Device) }, func(r processRow) bool { return r.Device > 0 }},
	{"CONTEXT", true, func(r processRow) string { return humanfmt.Short(r.Context) }, func(r processRow) bool { return r.Context > 0 }},
	{"MODULE", true, func(r processRow) string { return humanfmt.Short(r.Module) }, func(r processRow) bool { return r.Module > 0 }},
	{"DATA", true, func(r processRow) string { return humanfmt.Short(r.Data) }, func(r processRow) bool { return r.Data != r.Total }},
	{"DRIVER", true, func(r processRow) string { return humanfmt.Short(r.Overhead) }, func(r processRow) bool { return r.Overhead > 0 }},
	{"HOLDS", true, func(r processRow) string { return humanfmt.Short(r.Total) }, nil},
	{"DRIFT", true, func(r processRow) string { return drift(r.Holding) }, func(r processRow) bool { return r.DriverNow }},
	computeColumns[0], computeColumns[1], computeColumns[2], computeColumns[3], computeColumns[4],
	{"NAME", false, func(r processRow) string { return claim(r, r.Name) }, nil},
}

// printProcesses prints a line for each process and device.
func (a *app) printProcesses(processes []machine.Process) {
	if len(processes) == 0 {
		a.out.printf("  no processes\n")
		return
	}
	var rows []processRow
	for _, p := range processes {
		if len(p.Holdings) == 0 {
			rows = append(rows, processRow{Process: p})
		}
		for _, h := range p.Holdings {
			rows = append(rows, processRow{p, h})
		}
	}
	printTable(a.out, processColumns, rows)
}
