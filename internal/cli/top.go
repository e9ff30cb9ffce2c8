package cli

import (
	"os"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/tui"
	"ration/internal/usage"
	"ration/machine"
)

type topFlags struct {
	region   string // path; empty for all jobs
	readOnly bool
	interval time.Duration
	node.Selection
}

func newTopCommand(a *app) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:        "top",
		SuggestFor: []string{"monitor", "watch"},
		Short:      "Show the machine, its jobs and processes as they change",
		Long: `Show the machine on the terminal as it changes: its findings and its GPUs, with
what is used of each, handed out, and held outside jobs; the jobs that run, the
busiest first, with a bar for each device, its limit and its peak; processes;
and refusals, by the process that asked, and deaths as they happen. Root sees
the jobs of all users. The last line shows keys; ? explains them all.

COMPUTE is a job's share of a device's time and its cap. TIME is how much of
that time it had lately: measured if there is a cap, otherwise from the
driver's samples over five seconds or more, marked with ~, which may be wrong
by several points.

A process has its command, CPU, its share of one processor since the last look
(200% is two processors), and RSS, its part of the host's memory. They are read
only of processes on the screen. g shows all GPUs where they do not fit.

Enter shows all about a job, with its history: since ration top was started, and
where an agent runs (ration agent) the 15 minutes before. d shows who used the
GPUs in a day and a week, as ration report does. u shows the users, e also ended
jobs, t processes as a tree. / shows only what has a text in it, or
what ration ps --filter takes: state=running gpu=0. --sort, --user and --filter
are as for ration ps; Esc shows everything again.

l changes a job's limits, as ration limit does. x ends a job, as ration stop
does. k sends a signal to all processes of a job, as ration signal does, or
among processes to the one that is shown and no other, and never to one that
only its job vouches for. Each asks first.

How it is shown (order, columns, tree, mouse) is kept in ration/top.json in
$XDG_CONFIG_HOME or ~/.config, if that is yours.

It needs a terminal that can move its cursor, 80 columns by 24 lines or more for
everything; with less it shows less. Without one there is ration ps --watch.

NO_COLOR=1 turns colours off. Where the locale (LC_ALL, LC_CTYPE, LANG) is not
UTF-8, and on the Linux console, frames are drawn in ASCII.

The memory of dead processes is returned to the job, if you may write its
region. With --read-only nothing is changed.

Exit status: 0; 2 if there is no terminal; 3 if the named region could not be
read.`,
		Example: "  ration top\n  ration top --interval 250ms\n  ration top --user anna --sort mem\n  ration top --region /run/ration/train/region",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runTop(cmd, f) },
	}
	addSelectionFlags(&f.Selection, cmd.Flags())
	cmd.Flags().StringVar(&f.region, "region", "", "show only the job with the region at this `path`")
	cmd.Flags().DurationVarP(&f.interval, "interval", "i", time.Second, "how often to read the jobs")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing: do not return the memory of dead processes either")
	return cmd
}

func (a *app) runTop(cmd *cobra.Command, f topFlags) error {
	switch {
	case a.json:
		return usageError("ration top draws on a terminal (for JSON use ration ps --json, or with --watch)")
	case os.Getenv("TERM") == "dumb":
		return usageError("the terminal cannot move its cursor: TERM is dumb (use ration ps --watch)")
	case !a.out.tty:
		return usageError("standard output is not a terminal (use ration ps, or ration ps --watch)")
	case f.interval < minInterval:
		return usageError("--interval %v: too often (use %v or more)", f.interval, minInterval)
	}
	if err := f.Check(); err != nil {
		return statusError{err, ExitUsage}
	}
	opts := node.Options{ReadOnly: f.readOnly}
	reader := &node.Reader{}
	defer reader.Close()
	read := func() (machine.Machine, error) { return reader.Read(opts) }
	if cmd.Flags().Changed("region") {
		read = func() (machine.Machine, error) { return reader.ReadJob(job.Job{Path: f.region}, opts), nil }
		if m, _ := read(); m.Jobs[0].Err() != nil {
			return statusError{m.Jobs[0].Err(), ExitOpen}
		}
	}
	totals, first := &agent.Totals{}, true
	source := func() (s tui.Sample) {
		s.Time = time.Now()
		s.Machine, s.Err = read()
		reader.AddTimes(s.Jobs, s.Time)
		_ = totals.Add(&s.Machine)
		s.Mine = !totals.All()
		if first && !totals.Resting() { // an agent that does not answer is not asked twice
			s.Past = agentHistory()
		}
		first = false
		return s
	}
	var actions tui.Actions
	if !f.readOnly {
		actions = topActions{}
	}
	path := tui.SettingsPath()
	before := tui.LoadSettings(path)
	after, err := tui.Run(source, (&node.HostMeter{}).Read, topUsage, actions, f.interval, f.Selection, before, tui.Terminal{In: os.Stdin, Out: a.out.Writer, Environ: os.Environ()})
	if path != "" && !reflect.DeepEqual(before, after) {
		printError(a.err, after.Save(path)) // a failure here does not matter
	}
	return err
}

// topUsage returns a report of the time until now.
func topUsage(span time.Duration) (usage.Report, error) {
	now := time.Now()
	return viewerReport(now.Add(-span), now, true)
}

// agentHistory returns the history of an agent, or nil.
func agentHistory() *node.History {
	c, err := agent.Find()
	if err != nil {
		return nil
	}
	h, err := c.History()
	if err != nil {
		return nil
	}
	return &h
}
