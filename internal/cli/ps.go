package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

type psFlags struct {
	region   string // path; empty for all jobs
	readOnly bool
	all      bool // include ended jobs
	quiet    bool // only names
	long     bool // a block for each job
	wide     bool
	format   string
	watch    watchFlags
	node.Selection
}

func newPsCommand(a *app) *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:        "ps [JOB...]",
		SuggestFor: []string{"list", "ls", "status", "show", "jobs"},
		Short:      "Show jobs, their limits and their processes",
		Long: `Show the jobs in a table, one line each. With JOBs, which are names, paths of
regions, or for root USER/NAME, show each of them in a block: its devices with
their limits and usage, and its processes with the memory that each holds.
--long shows all jobs in blocks.

USED is what the job holds on all its GPUs, and LIMIT what it may: 2x10G is
10 GiB on each of two. GPU any is a job whose processes have not found out yet
which GPUs exist. STATE is also how the command of an ended job ended (exit 0,
signal 9). NOTE says what needs attention. --wide adds columns and cuts nothing;
otherwise lines are cut at the width of the terminal. --sort mem, name, user,
age, gpu or busy (by GPU time, with --watch) sorts the jobs. --user and --filter
select jobs, also for --json, --quiet and --format: name and state must be equal
(* and ? are wildcards of a name), a command must contain the value, and gpu=0
is every job that may use GPU 0. Several filters must all match.

A job is waiting while its command is in the queue (ration run --wait); NOTE
has its place. It is starting until a process has joined it. It is running
while one of those lives, stopped while all of them are (by a signal), and idle
while its command runs without any. --all also shows jobs that have ended, and
to root those on no GPU of this machine, as of ration bench or a stand-in
driver: regions elsewhere that name none of its GPUs, and of which the driver
lists no process. They count for no GPU, and have no events and no accounts. The
state comes from locks in the kernel: a job's processes, and its command with
everything that it starts, hold locks on its files. How a job ended is unknown
only if its ration run was killed. If an agent runs, a job is idle as well while
its processes hold memory and do nothing on the GPU; NOTE says for how long.

The columns of a block: SLOT is the number of a process's account in the region.
HOLDS is the sum of CONTEXT, DATA and the others. DRIFT is how much more the
driver counts for the process now; it is shown only if there is a driver. A ?
marks a PID or name that only the job's own file claims: the process has ended,
or cannot be seen from here. All others are confirmed by the kernel. CPU is the
share of one processor that a process had since it started or, with --watch,
since it was shown before: 200% is two processors. RSS is its part of the host's
memory. Both are in blocks, and in --json with JOB or --long.

If there is a driver, its devices come first, with the sum of the limits on
each. Processes that hold memory and belong to no job come last, followed by
findings for the owner of the machine. With JOB, --user or --filter, those about
other jobs and users are left out, also in JSON.

Root sees the jobs of all users, also those that a process has locked in any
other place, such as a container; of a job with very many processes those that
hold most; with JOB, all of them. A user whose folder does not respond within
two seconds is named, and does not affect the others. A plain name is root's
own job, or else the only one of that name which runs. Others see their own, of
all their logins: those in /tmp/ration-UID and ~/.local/state/ration, and those
that earlier versions made in $XDG_RUNTIME_DIR/ration, /run/user/UID/ration and
$TMPDIR/ration-UID. ` + job.EnvFolder + ` names one folder instead, also to root,
and ` + job.EnvRegion + ` one more region.

The memory of dead processes is first returned to the job, if you may write its
region. With --read-only nothing is changed.

--format prints a Go template for each job, as in '{{.job}} {{.state}}', over
the fields of a job in --json. Their names in Go's package machine work too, as
in '{{.Name}} {{.State}}'. {{json .processes}} renders a value as JSON,
{{bytes N}} a size, and {{join .command " "}} a list.

--watch shows the jobs repeatedly, until it is interrupted or has done so
--count times: in place on a terminal, otherwise one after the other, and with
--json one line each time. TIME is then how much of its device's time a process
had. It is measured in a job with a cap. Otherwise it is the driver's rough
average over five seconds or more, marked with ~, and may be wrong by several
points.

Exit status: 0, also without any job; 2 if there is no such user; 3 if a region
could not be read, or there is no such job. The other jobs are shown all the
same.`,
		Example: `  ration ps
  ration ps --sort mem --filter state=running
  ration ps --user anna --filter 'name=fold*'
  ration ps -a train
  ration ps -q
  ration ps --format '{{.job}} {{.state}} {{len .processes}}'
  ration ps --watch --interval 5s
  ration ps --json --region /run/ration/train/region`,
		Args:              argCount(0, -1, "jobs"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE:              func(cmd *cobra.Command, args []string) error { return a.runPs(cmd, f, args) },
	}
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "show also jobs that have ended")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only what other commands take: names, and paths of other users' jobs")
	cmd.Flags().BoolVarP(&f.long, "long", "l", false, "show a block for each job, with its processes")
	cmd.Flags().BoolVar(&f.wide, "wide", false, "show more columns, and cut nothing")
	addSelectionFlags(&f.Selection, cmd.Flags())
	cmd.Flags().StringVar(&f.format, "format", "", "print this Go `template` for each job")
	cmd.Flags().BoolVarP(&f.watch.enabled, "watch", "w", false, "show the jobs repeatedly")
	cmd.Flags().DurationVarP(&f.watch.interval, "interval", "i", time.Second, "how long --watch waits in between")
	cmd.Flags().IntVarP(&f.watch.count, "count", "n", 0, "how often --watch shows the jobs; 0 is until interrupted")
	cmd.Flags().StringVar(&f.region, "region", "", "show only the job with the region at this `path`")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing: do not return the memory of dead processes either")
	return cmd
}

func (a *app) runPs(cmd *cobra.Command, f psFlags, names []string) error {
	if err := f.watch.check(cmd); err != nil {
		return err
	}
	if f.quiet && (a.json || f.format != "") || a.json && f.format != "" {
		return usageError("--quiet, --format and --json: each says what to print (use one of them)")
	}
	if err := f.Check(); err != nil {
		return statusError{err, ExitUsage}
	}
	format, err := parseJobTemplate(f.format)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("region") {
		if len(names) > 0 {
			return usageError("--region: names one job already (name no others)")
		}
		return a.printPs(f, func(a *app) error { return a.printJobAt(f, format) })
	}
	return a.printPs(f, func(a *app) error { return a.printAllJobs(f, names, format) })
}

// printPs prints once, or repeatedly.
func (a *app) printPs(f psFlags, print func(*app) error) error {
	a.node, a.totals = &node.Reader{}, &agent.Totals{}
	defer a.node.Close()
	if f.watch.enabled {
		return f.watch.repeat(a, print)
	}
	return print(a)
}

// printJobAt prints the job of one region. It returns an error if the region cannot be read.
func (a *app) printJobAt(f psFlags, format *template.Template) error {
	m := a.node.ReadJob(job.Job{Path: f.region}, node.Options{ReadOnly: f.readOnly})
	s := &m.Jobs[0]
	a.addTime(f, m.Jobs)
	addPolicySleep(m.Jobs)
	a.host.AddHostUse(m.Jobs)
	if a.json {
		if err := a.out.printJSON(m); err != nil {
			return err
		}
	}
	if s.Err() != nil {
		return statusError{s.Err(), ExitOpen}
	}
	switch {
	case a.json:
	case f.quiet || format != nil:
		return a.printEach(m.Jobs, format)
	default:
		a.printJob(*s)
		a.printClaimNote(showsClaims(*s))
	}
	return nil
}

func (a *app) printAllJobs(f psFlags, names []string, format *template.Template) error {
	opts := fullOf(f.readOnly, names)
	m, err := a.node.Read(opts)
	if err != nil {
		return statusError{err, ExitOpen}
	}
	a.noteSilent(a.totals.Add(&m), "totals of other users' jobs are not shown")
	read := func(j job.Job) machine.Job { return a.node.ReadJob(j, opts).Jobs[0] }
	if m.Jobs, m.Waiting, err = chooseJobs(&m, names, read); err != nil {
		return err
	}
	if len(names) == 0 {
		if f.all {
			m.Jobs = append(m.Jobs, m.Elsewhere...)
		}
		m.Jobs = f.Apply(m.Jobs)
		m.Waiting = slices.DeleteFunc(m.Waiting, func(w machine.Waiting) bool { return !f.HasWaiting(&w) })
		if !f.all && !slices.Contains(f.Filters, "state="+machine.Ended) {
			hideEnded(&m)
		}
	}
	if len(names) > 0 || f.User != "" || len(f.Filters) > 0 {
		onlySelected(&m, f.Selection)
	}
	if err := checkUser(&m, f.User); err != nil {
		return err
	}
	for _, s := range m.Jobs {
		if s.Err() != nil {
			err = statusError{errReported, ExitOpen}
		}
	}
	a.addTime(f, m.Jobs)
	addPolicySleep(m.Jobs)
	if len(names) > 0 || f.long {
		a.host.AddHostUse(m.Jobs)
	}
	switch {
	case a.json:
		return errors.Join(a.out.printJSON(m), err)
	case f.quiet || format != nil:
		shown := slices.Concat(m.Jobs, node.WaitingJobs(m.Waiting))
		if len(names) == 0 {
			shown = f.Apply(shown)
		}
		return errors.Join(a.printEach(shown, format), err)
	}
	if len(names) == 0 {
		a.printGPUs(m.Devices)
	}
	for _, name := range names {
		a.noteShared(name, m.Jobs)
	}
	if _, kept, is := job.Enclosing(); is && len(names) == 0 {
		a.out.paragraph(plain, 0, "All programs here are in %s (ration run --keep): %s.", kept, filepath.Join(job.WellKnown, job.RegionName))
	}
	switch {
	case len(m.Jobs)+len(m.Waiting) > 0 || m.Hidden > 0:
	case f.User != "" && !job.AllUsers() && !node.IsUser(f.User)(os.Geteuid(), proc.UserName(os.Geteuid())):
		a.out.printf("No job of user %s is shown: only root sees other users' jobs.\n", oneWord(f.User))
	case f.User != "" || len(f.Filters) > 0:
		a.out.printf("No job matches. (`ration ps` shows all.)\n")
	case job.Ruled():
		a.out.paragraph(plain, 0, "You have no job. (Your first CUDA program makes it; `ration policy show %s` says how much it gets.)", oneWord(proc.UserName(os.Geteuid())))
	default:
		a.out.printf("There are no jobs in %s. (`ration demo` shows one at work.)\n", m.Folder)
	}
	table := len(names) == 0 && !f.long
	shown := append(slices.Clone(m.Jobs), node.WaitingJobs(m.Waiting)...)
	if table && len(shown) > 0 {
		if len(m.Devices) > 0 {
			a.out.printf("\n")
		}
		a.printJobTable(f.Apply(shown), m.Waiting, f.wide)
	}
	for i, s := range shown {
		if table {
			break
		}
		if i > 0 || len(names) == 0 && len(m.Devices) > 0 {
			a.out.printf("\n")
		}
		if len(names) == 0 && !node.IsOwn(&s) {
			s = s.Shorten(shownRows)
		}
		if w := node.WaitingAt(&m, s.Path); w != nil && s.State == node.Waiting {
			a.printTitle(s)
			a.out.paragraph(plain, 2, "%s (ration queue)", node.WaitingText(w))
			continue
		}
		a.printJob(s)
	}
	if len(names) == 0 {
		a.printOutside(m.Outside)
		a.printFindings(m.Findings, table)
	}
	a.printClaimNote(!table && slices.ContainsFunc(m.Jobs, showsClaims))
	a.printHidden(&m, f.Selection)
	return err
}

// noteShared says it if an argument names a command in this user's job, and no job.
func (a *app) noteShared(name string, jobs []machine.Job) {
	record, is := job.InUsersJob(name)
	if !is || slices.ContainsFunc(jobs, func(j machine.Job) bool { return j.Name == name || strings.HasSuffix(j.Name, "/"+name) }) {
		return
	}
	text := "runs"
	switch end := record.End; {
	case !record.Running && end != nil && end.Signal != 0:
		text = fmt.Sprintf("has ended by signal %d, and was", end.Signal)
	case !record.Running && end != nil:
		text = fmt.Sprintf("has ended with exit status %d, and was", end.Status)
	case !record.Running:
		text = "has ended, and was"
	}
	a.out.paragraph(plain, 0, "%s %s in %s, the job of all your programs.", oneWord(name), text, proc.UserName(os.Getuid()))
}

func (a *app) printJob(s machine.Job) {
	a.printTitle(s)
	if s.Err() != nil {
		a.out.paragraph(red, 2, "%s", s.Error)
		if len(s.Processes) > 0 {
			a.printProcesses(s)
		}
		return
	}
	a.printDevices(&s)
	a.printProcesses(s)
	a.printNotEnforced(s)
	if s.Priority != "" {
		a.out.paragraph(plain, 2, "%s", s.PrioritySentence())
	}
	if text := node.SleepText(&s, time.Now()); s.Sleep == machine.Asleep {
		a.out.paragraph(plain, 2, "asleep: %s (wake it: ration wake %s)", text, argumentOf(&s))
	} else if text != "" {
		a.out.paragraph(plain, 2, "%s", text)
	}
	for _, p := range s.Processes {
		if p.CannotSleep != "" {
			a.out.paragraph(dim, 2, "cannot sleep: pid %s %s", humanfmt.Claim(fmt.Sprint(p.PID), p.Verified), p.CannotSleep)
		}
	}
	if s.WaitAlloc > 0 {
		a.out.paragraph(plain, 2, "requests wait for memory up to %s", humanfmt.Span(time.Duration(s.WaitAlloc)*time.Millisecond))
	}
	for _, p := range s.Processes {
		for _, w := range p.Waits {
			a.out.paragraph(bold, 2, "pid %s waits for %s of device %d, for %s so far", humanfmt.Claim(fmt.Sprint(p.PID), p.Verified), humanfmt.Bytes(w.Bytes), w.Device, humanfmt.Span(max(0, time.Since(w.Since)).Round(time.Second)))
		}
		if p.State == machine.Ending {
			a.out.paragraph(plain, 2, "pid %d %s", p.PID, p.WhyEnding())
		}
	}
	if n, held := dead(&s); n > 0 {
		a.out.paragraph(plain, 2, "%s: %s not yet returned; the next request that needs it gets it", humanfmt.Plural(n, "process is dead", "processes are dead"), humanfmt.Bytes(held))
	}
	for _, p := range s.Reaped {
		a.out.printf("  pid %d (%s) was dead: returned %s to the job\n", p.PID, termtext.Printable(p.Name), humanfmt.Bytes(p.Held()))
	}
	if len(s.Deaths) > 0 && len(s.Reaped) == 0 {
		ago := max(0, time.Since(s.Deaths[0].Time)).Round(time.Second)
		a.out.paragraph(plain, 2, "last death, %v ago: %s", ago, s.Deaths[0].Sentence())
	}
	if s.Damaged > 0 {
		a.out.paragraph(red, 2, "%d slots hold what cannot be, and are out of use; what they hold stays counted (end the job and remove it)", s.Damaged)
	}
	if len(s.Refusals) > 0 {
		f := s.Refusals[0]
		ago := max(0, time.Since(f.Time)).Round(time.Second)
		a.out.paragraph(plain, 2, "last refusal, %v ago, on device %d: %s", ago, f.Device, f.Sentence(append(s.Processes, s.Reaped...)))
	}
	if r := s.Reads; r.BestEffort > 0 {
		a.out.printf("  %s of %s reads were best effort (%.2g %%)\n", humanfmt.Count(r.BestEffort), humanfmt.Count(r.Reads), 100*r.BestEffortRatio)
	}
}

// deviceLine formats a device in one line, with a bar on a terminal.
func (a *app) deviceLine(d machine.Device, lent bool) string {
	line := fmt.Sprintf("device %d  ", d.Device)
	if lent {
		return line + "the ration is lent, peak " + humanfmt.Bytes(d.Peak)
	}
	if d.Limited {
		share := 0.0
		if d.Limit > 0 {
			share = float64(d.Used) / float64(d.Limit)
		}
		if a.out.tty {
			line += a.out.bar(share, 20) + "  "
		}
		line += fmt.Sprintf("%s of %s (%.0f %%)", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Limit), 100*share)
	} else {
		line += humanfmt.Bytes(d.Used) + " used, no limit"
	}
	line += ", peak " + humanfmt.Bytes(d.Peak)
	if d.Inexact {
		line += ", while its processes changed"
	}
	if d.Over() > 0 {
		line += ", " + a.out.style(red, "over its limit by "+humanfmt.Bytes(d.Over()))
	}
	return line
}

// drift formats how much more or less the driver counts for a process than we do. It uses only a
// current count of the driver: an older one describes an older state.
func drift(h machine.Holding) string {
	switch {
	case !h.DriverNow:
		return "-"
	case h.Driver >= h.Total:
		return "+" + humanfmt.Short(h.Driver-h.Total)
	}
	return "-" + humanfmt.Short(h.Total-h.Driver)
}

// addTime adds how much of their devices' time processes had, if they are printed repeatedly.
func (a *app) addTime(f psFlags, jobs []machine.Job) {
	if f.watch.enabled {
		a.node.AddTimes(jobs, time.Now())
	}
}

// processRow is a process and its use of one device.
type processRow struct {
	machine.Process
	machine.Holding
	depth   int    // depth in the tree of the job's processes
	command string // empty if it is the command of the job, which is shown above
}

// claim marks a text that only the job claims about a process.
func claim(r processRow, text string) string { return humanfmt.Claim(text, r.Verified) }

var processColumns = []column[processRow]{
	{"SLOT", true, func(r processRow) string { return fmt.Sprint(r.Slot) }, func(r processRow) bool { return r.Slot >= 0 }},
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
	{"CPU", true, ofHost(func(u *machine.HostUse) string { return fmt.Sprintf("%.0f%%", u.CPU.Percent) }), hasHost},
	{"RSS", true, ofHost(func(u *machine.HostUse) string { return humanfmt.Short(u.RSS) }), hasHost},
	{"IN", false, func(r processRow) string { return r.Container }, func(r processRow) bool { return r.Container != "" }},
	{"NAME", false, func(r processRow) string { return strings.Repeat("  ", r.depth) + claim(r, r.Name) }, nil},
	{"COMMAND", false, func(r processRow) string { return r.command }, func(r processRow) bool { return r.command != "" }},
}

func hasHost(r processRow) bool { return r.Host != nil }

func ofHost(text func(*machine.HostUse) string) func(processRow) string {
	return func(r processRow) string {
		if r.Host == nil {
			return "-"
		}
		return text(r.Host)
	}
}

// printProcesses prints a line for each process and device, and how many are not shown.
func (a *app) printProcesses(s machine.Job) {
	if s.ProcessCount() == 0 {
		a.out.printf("  no processes\n")
		return
	}
	var rows []processRow
	for p, depth := range node.Tree(s.Processes) {
		row := processRow{Process: p, depth: depth}
		if p.Host != nil && !slices.Equal(p.Host.Command, s.Command) {
			row.command = strings.Join(p.Host.Command, " ")
		}
		if len(p.Holdings) == 0 {
			rows = append(rows, row)
		}
		for _, h := range p.Holdings {
			row.Holding = h
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		printTable(a.out, processColumns, rows)
	}
	if more := s.ProcessCount() - len(s.Processes); more > 0 {
		a.out.paragraph(plain, 2, "and %s more, which hold less or only claim to be there (ration ps %s shows them)",
			humanfmt.Plural(more, "process", "processes"), oneWord(argumentOf(&s)))
	}
}
