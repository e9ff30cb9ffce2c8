package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
)

// Jobs is what `ration ps --json` prints.
type Jobs struct {
	Folder string       `json:"folder"` // of this user's jobs
	Jobs   []job.Status `json:"jobs"`
}

func (a *app) ps() *cobra.Command {
	var path string
	var only bool
	var w watch
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show who holds what",
		Long: `Show each job's devices, with their limits and what is used of them, and its
processes, with what each of them holds.

Jobs are found in the folder of this user's jobs: /run/ration for root, and
$XDG_RUNTIME_DIR/ration or ${TMPDIR:-/tmp}/ration-UID for others. ` + job.EnvFolder + `
names another folder, and ` + job.EnvRegion + ` one more region.

Memory of processes that died without returning it is given back first, where
you may write the region. With --read-only nothing is touched.

With --watch it is shown again and again, until it is interrupted or as often as
--count says: in place on a terminal, one after the other elsewhere, and with
--json as one line of JSON each time.

Exit status: 0, also when there is nothing to show; 3 if a region could not be
read. The others are shown all the same.`,
		Example: "  ration ps\n  ration ps --watch --interval 5s\n  ration ps --json --region /run/ration/train/region",
		Args:    noArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			show := func(a *app) error {
				if cmd.Flags().Changed("region") {
					return a.named(path, only)
				}
				return a.showAll(only)
			}
			if err := w.check(cmd); err != nil {
				return err
			}
			if w.on {
				return w.run(a, show)
			}
			return show(a)
		}),
	}
	cmd.Flags().BoolVarP(&w.on, "watch", "w", false, "show it again and again")
	cmd.Flags().DurationVarP(&w.every, "interval", "i", time.Second, "how long --watch waits in between")
	cmd.Flags().IntVarP(&w.count, "count", "n", 0, "how often --watch shows it; 0 is until interrupted")
	cmd.Flags().StringVar(&path, "region", "", "show only the region at this `path`")
	cmd.Flags().BoolVar(&only, "read-only", false, "touch nothing, not even what dead processes hold")
	return cmd
}

// named shows one region. That it cannot be read is then an error, and not a line
// in a list.
func (a *app) named(path string, only bool) error {
	s := job.Read(job.Job{Path: path}, job.ReadOptions{ReadOnly: only})
	compare([]job.Status{s})
	if a.json {
		if err := a.out.print(Jobs{job.Folder(), []job.Status{s}}); err != nil {
			return err
		}
	}
	if s.Err() != nil {
		return statusError{s.Err(), ExitOpen}
	}
	if !a.json {
		a.status(s)
	}
	return nil
}

func (a *app) showAll(only bool) error {
	jobs, err := job.ReadAll(job.ReadOptions{ReadOnly: only})
	if err != nil {
		return statusError{err, ExitOpen}
	}
	var unread error
	for _, s := range jobs {
		if s.Err() != nil {
			unread = statusError{errSaid, ExitOpen}
		}
	}
	out := Jobs{Folder: job.Folder(), Jobs: jobs}
	compare(out.Jobs)
	if a.json {
		return errors.Join(a.out.print(out), unread)
	}
	if len(out.Jobs) == 0 {
		a.out.printf("No job has anything here: there is no region in %s. (`ration demo` shows one at work.)\n", out.Folder)
		return nil
	}
	for i, s := range out.Jobs {
		if i > 0 {
			a.out.printf("\n")
		}
		a.status(s)
	}
	return unread
}

// status prints one job.
func (a *app) status(s job.Status) {
	title := a.out.style(dim, printable(s.Path))
	if s.Job != "" {
		title = a.out.style(bold, s.Job) + "  " + title
	}
	a.out.printf("%s\n", title)
	if s.Err() != nil {
		a.out.printf("  %s\n", a.out.style(red, a.out.wrap(printable(s.Error), 2)))
		return
	}
	for _, d := range s.Devices {
		a.out.printf("  %s\n", a.deviceLine(d))
	}
	if len(s.Devices) == 0 {
		a.out.printf("  no limits, and nothing was ever used\n")
	}
	a.processes(s.Processes)
	for _, p := range s.Reaped {
		a.out.printf("  pid %d (%s) was dead: gave back %s\n", p.PID, printable(p.Name), humanfmt.Bytes(total(p)))
	}
	if len(s.Refusals) > 0 {
		f := s.Refusals[0]
		ago := max(0, time.Since(time.Unix(0, f.Time))).Round(time.Second)
		a.out.printf("  %s\n", a.out.wrap(printable(fmt.Sprintf("last refusal, %v ago, on device %d: %s",
			ago, f.Device, f.Sentence(append(s.Processes, s.Reaped...)))), 2))
	}
	if r := s.Reads; r.BestEffort > 0 {
		a.out.printf("  %s of %s reads were best effort\n", humanfmt.Count(r.BestEffort), humanfmt.Count(r.Reads))
	}
}

// deviceLine is a device on one line, with a bar where there is a terminal.
func (a *app) deviceLine(d job.Device) string {
	line := fmt.Sprintf("device %d  ", d.Device)
	if !d.Limited {
		return line + fmt.Sprintf("%s used, no limit, peak %s", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Peak))
	}
	share := 0.0
	if d.Limit > 0 {
		share = float64(d.Used) / float64(d.Limit)
	}
	if a.out.tty {
		line += a.out.bar(share, 20) + "  "
	}
	line += fmt.Sprintf("%s of %s (%.0f %%), peak %s", humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Limit), 100*share, humanfmt.Bytes(d.Peak))
	if d.Tolerance > 0 {
		line += fmt.Sprintf(", may pass it by %s", humanfmt.Percent(float64(d.Tolerance)/10))
	}
	return line
}

// drift is what the driver counts for a process beyond what we do.
func drift(h job.Holding) string {
	switch {
	case h.Driver == 0:
		return "-"
	case h.Driver >= h.Total:
		return "+" + humanfmt.Short(h.Driver-h.Total)
	}
	return "-" + humanfmt.Short(h.Total-h.Driver)
}

// compare asks the driver, where there is one, what it counts for each process:
// newer than what the processes themselves have seen, and nobody's own word.
func compare(jobs []job.Status) {
	driver, err := gpu.Open("")
	if err != nil {
		return
	}
	defer driver.Close()
	counted, err := driver.Processes()
	if err != nil {
		return
	}
	for _, s := range jobs {
		for _, p := range s.Processes {
			for i := range p.Holdings {
				for _, c := range counted {
					if c.PID == p.HostPID && c.Device == p.Holdings[i].Device {
						p.Holdings[i].Driver = c.Used
					}
				}
			}
		}
	}
}

func total(p job.Process) (n uint64) {
	for _, h := range p.Holdings {
		n += h.Total
	}
	return n
}

// processes prints a line for each process and device, with the columns that say
// something.
func (a *app) processes(all []job.Process) {
	if len(all) == 0 {
		a.out.printf("  no processes\n")
		return
	}
	columns := []column[entry]{
		{"SLOT", true, func(e entry) string { return fmt.Sprint(e.Slot) }, nil},
		{"PID", true, func(e entry) string { return fmt.Sprint(e.PID) }, nil},
		{"HOST PID", true, func(e entry) string { return fmt.Sprint(e.HostPID) }, func(e entry) bool { return e.HostPID != 0 && e.HostPID != e.PID }},
		{"USER", false, func(e entry) string { return e.User }, nil},
		{"STATE", false, func(e entry) string { return e.State }, nil},
		{"DEVICE", true, func(e entry) string { return fmt.Sprint(e.Device) }, func(e entry) bool { return e.Device > 0 }},
		{"CONTEXT", true, func(e entry) string { return humanfmt.Short(e.Context) }, func(e entry) bool { return e.Context > 0 }},
		{"MODULE", true, func(e entry) string { return humanfmt.Short(e.Module) }, func(e entry) bool { return e.Module > 0 }},
		{"DATA", true, func(e entry) string { return humanfmt.Short(e.Data) }, func(e entry) bool { return e.Data != e.Total }},
		{"DRIVER", true, func(e entry) string { return humanfmt.Short(e.Overhead) }, func(e entry) bool { return e.Overhead > 0 }},
		{"HOLDS", true, func(e entry) string { return humanfmt.Short(e.Total) }, nil},
		{"DRIFT", true, func(e entry) string { return drift(e.Holding) }, func(e entry) bool { return e.Driver > 0 }},
		{"NAME", false, func(e entry) string { return e.Name }, nil},
	}
	var lines []entry
	for _, p := range all {
		if len(p.Holdings) == 0 {
			lines = append(lines, entry{Process: p})
		}
		for _, h := range p.Holdings {
			lines = append(lines, entry{p, h})
		}
	}
	for _, line := range table(columns, lines, a.out) {
		a.out.printf("  %s\n", strings.TrimRight(line, " "))
	}
}

// entry is a process and what it has of one device.
type entry struct {
	job.Process
	job.Holding
}
