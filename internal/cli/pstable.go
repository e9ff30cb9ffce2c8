package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

// addSelectionFlags adds the flags that select and sort jobs.
func addSelectionFlags(s *node.Selection, flags *pflag.FlagSet) {
	flags.StringVar(&s.Sort, "sort", "", "sort by `key`: mem, name, user, age, gpu or busy")
	flags.StringVarP(&s.User, "user", "u", "", "show only jobs of this `user`")
	flags.StringArrayVarP(&s.Filters, "filter", "f", nil, "show only jobs with `KEY=VALUE`: name, user, state, gpu or command")
}

// jobLimitText formats a job's limit: 10G, for several devices 2x10G, or their sum if they differ, and 10G,none if there is
// a device without a limit.
func jobLimitText(j *machine.Job) string {
	if j.RationLent {
		return "lent"
	}
	if uid, is := job.PolicyUser(j.Path); is && j.Path == job.OfUserPath(uid) && job.Exempt(uid) {
		return "exempt"
	}
	devices := node.DevicesOf(j)
	if len(devices) == 0 && len(j.Devices) > 0 {
		devices = slices.CompactFunc(slices.Clone(j.Devices), func(a, b machine.Device) bool { return a.Limited == b.Limited && a.Limit == b.Limit })
	}
	var sum uint64
	none, equal := false, true
	for _, d := range devices {
		if !d.Limited {
			none = true
			continue
		}
		sum += min(d.Limit, ^sum)
		equal = equal && d.Limit == devices[0].Limit
	}
	switch {
	case sum == 0 && (none || len(devices) == 0):
		return "none"
	case none:
		return humanfmt.Short(sum) + ",none"
	case len(devices) > 1 && equal:
		return fmt.Sprintf("%dx%s", len(devices), humanfmt.Short(devices[0].Limit))
	}
	return humanfmt.Short(sum)
}

// stateText formats a job's state in one word, with the exit status of one that has ended.
func stateText(j *machine.Job) string {
	switch {
	case j.Err() != nil && j.State == "":
		return "?"
	case j.Exit != nil && j.Exit.Signal != 0:
		return fmt.Sprintf("signal %d", j.Exit.Signal)
	case j.Exit != nil:
		return fmt.Sprintf("exit %d", j.Exit.Status)
	}
	return node.StateWord(j)
}

// dead returns how many processes of a job are dead and still count in its ledger, and with how much.
func dead(j *machine.Job) (n int, held uint64) {
	for _, p := range j.Processes {
		if p.State == machine.Dead {
			n++
			held += min(p.Held(), ^held)
		}
	}
	return n, held
}

// noteText says what needs attention.
func noteText(j *machine.Job) string {
	var notes []string
	if j.Elsewhere {
		notes = append(notes, "on no GPU of this machine")
	}
	var over uint64
	for _, d := range j.Devices {
		over += d.Over()
	}
	if over > 0 {
		notes = append(notes, "over by "+humanfmt.Short(over))
	}
	if !j.IdleSince.IsZero() {
		notes = append(notes, "idle "+node.Ago(time.Since(j.IdleSince)))
	}
	if j.CannotSleep != "" {
		notes = append(notes, "cannot sleep")
	}
	if j.RationLent {
		notes = append(notes, "wakes when there is room")
	}
	if n, held := dead(j); n > 0 {
		notes = append(notes, fmt.Sprintf("%d dead, %s not yet returned", n, humanfmt.Short(held)))
	}
	if n := j.Refused(); n > 0 {
		notes = append(notes, humanfmt.Count(n)+" refused")
	}
	if j.Died > 0 {
		notes = append(notes, humanfmt.Count(j.Died)+" died")
	}
	if j.Err() != nil {
		notes = append(notes, "unreadable")
	}
	return strings.Join(notes, ", ")
}

// maxShownName bounds the column of names on a terminal, so that a long one leaves room for the others; --wide shows all.
const maxShownName = 28

// cutName cuts a long name at its end, and a long path at its beginning.
func cutName(name string) string {
	if name = termtext.Printable(name); !strings.HasPrefix(name, "/") || termtext.Width(name) <= maxShownName {
		return termtext.Truncate(name, maxShownName, "…")
	}
	tail := []rune(name)
	for termtext.Width(string(tail)) >= maxShownName {
		tail = tail[1:]
	}
	return "…" + string(tail)
}

// jobColumns are the columns of the table. Names are whole unless they are cut, as on a terminal.
func jobColumns(wide, cut bool, waiting []machine.Waiting) []column[machine.Job] {
	always := func(machine.Job) bool { return wide }
	name := func(j machine.Job) string {
		if !cut {
			return node.ShownName(&j)
		}
		return cutName(node.ShownName(&j))
	}
	note := func(j machine.Job) string {
		if w := node.WaitingAt(&machine.Machine{Waiting: waiting}, j.Path); w != nil && j.State == node.Waiting {
			return node.WaitingText(w)
		}
		return noteText(&j)
	}
	return []column[machine.Job]{
		{"JOB", false, name, nil},
		{"USER", false, func(j machine.Job) string { return cmp.Or(j.Owner, "?") }, func(j machine.Job) bool { return wide || !isCallers(&j) }},
		{"STATE", false, func(j machine.Job) string { return stateText(&j) }, nil},
		{"AGE", true, func(j machine.Job) string { return ageText(&j) }, nil},
		{"GPU", false, func(j machine.Job) string { return node.GPUText(&j) }, nil},
		{"USED", true, func(j machine.Job) string { return humanfmt.Short(node.Used(&j)) }, nil},
		{"LIMIT", true, func(j machine.Job) string { return jobLimitText(&j) }, nil},
		{"PEAK", true, func(j machine.Job) string { return humanfmt.Short(peakOf(&j)) }, always},
		{"PROCS", true, func(j machine.Job) string { return fmt.Sprint(j.ProcessCount()) }, nil},
		{"NOTE", false, note, func(j machine.Job) bool { return note(j) != "" }},
		{"LAUNCHER", false, func(j machine.Job) string { return cmp.Or(j.Launcher, "?") }, always},
		{"POD", false, func(j machine.Job) string { return j.Kubernetes.String() }, func(j machine.Job) bool { return wide && j.Kubernetes != nil }},
		{"REGION", false, func(j machine.Job) string { return j.Path }, always},
		{"COMMAND", false, func(j machine.Job) string { return commandText(&j) }, func(j machine.Job) bool { return commandText(&j) != "" }},
	}
}

// commandText formats the command of a job. A job that was not made for one command, such as that of a policy's user,
// has the command of its process that holds most.
func commandText(j *machine.Job) string {
	living := slices.DeleteFunc(slices.Clone(j.Processes), func(p machine.Process) bool { return p.State == machine.Dead })
	if len(j.Command) > 0 || len(living) == 0 {
		return strings.Join(j.Command, " ")
	}
	p := slices.MaxFunc(living, func(a, b machine.Process) int { return cmp.Compare(a.Held(), b.Held()) })
	text := p.Name
	if p.Host != nil && len(p.Host.Command) > 0 {
		text = strings.Join(p.Host.Command, " ")
	}
	if n := len(living) - 1; n > 0 && text != "" {
		text += " and " + humanfmt.Plural(n, "other", "others")
	}
	return text
}

func ageText(j *machine.Job) string {
	if node.Began(j).IsZero() {
		return "-"
	}
	return node.Ago(time.Since(node.Began(j)))
}

// peakOf returns the sum of the peaks of all devices.
func peakOf(j *machine.Job) (bytes uint64) {
	for _, d := range j.Devices {
		bytes += d.Peak
	}
	return bytes
}

// isCallers reports whether a job's region belongs to the user of this command.
func isCallers(j *machine.Job) bool { return j.Owner == "" || j.Owner == proc.UserName(job.User()) }

// printJobTable prints a line for each job, also those in waiting, and then what was returned to jobs.
func (a *app) printJobTable(jobs []machine.Job, waiting []machine.Waiting, wide bool) {
	out := a.out
	if wide {
		out.tty = false // do not cut lines
	}
	for i := range jobs {
		if len(jobs[i].Command) == 0 {
			a.host.AddHostUse(jobs[i : i+1])
		}
	}
	printTable(out, jobColumns(wide, out.tty, waiting), jobs)
	for i := range jobs {
		var held uint64
		for _, p := range jobs[i].Reaped {
			held += p.Held()
		}
		if n := len(jobs[i].Reaped); n > 0 {
			a.out.paragraph(plain, 2, "%s: %s dead: returned %s to the job", node.ShownName(&jobs[i]), humanfmt.Plural(n, "process was", "processes were"), humanfmt.Bytes(held))
		}
	}
}
