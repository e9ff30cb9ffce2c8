package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"time"
	"unicode"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

// chooseJobs returns the jobs with these names, in this order, or all jobs if there are no names. read reads
// a job that m does not have. A command that waits comes before an earlier job of its name.
func chooseJobs(m *machine.Machine, names []string, read func(job.Job) machine.Job) (out []machine.Job, waiting []machine.Waiting, err error) {
	if len(names) == 0 {
		return m.Jobs, m.Waiting, nil
	}
	out = []machine.Job{}
	for _, name := range names {
		if w := findWaiting(m, name); w != nil {
			waiting = append(waiting, *w)
			continue
		}
		j, err := findJob(m, name, read)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, j)
	}
	return out, waiting, nil
}

// findWaiting returns the command that waits and will make the job which an argument names, or nil.
func findWaiting(m *machine.Machine, argument string) *machine.Waiting {
	jobs := node.WaitingJobs(m.Waiting)
	i, err := chooseJob(jobs, argument)
	if err != nil || i < 0 {
		return nil
	}
	return node.WaitingAt(m, jobs[i].Path)
}

// onlySelected removes what is about other jobs, commands and users than were selected. Findings about no job stay: they say
// that a GPU or the machine has a problem, or that a part could not be read.
func onlySelected(m *machine.Machine, s node.Selection) {
	selected := map[string]bool{}
	for i := range m.Jobs {
		selected[m.Jobs[i].Path] = true
	}
	for i := range m.Waiting {
		selected[m.Waiting[i].Path] = true
	}
	delete(selected, "")
	of := func(uid int, name string) bool {
		return len(s.Filters) == 0 && s.User != "" && node.IsUser(s.User)(uid, name)
	}
	m.Outside = slices.DeleteFunc(m.Outside, func(o machine.Outside) bool { return !of(o.UID, o.User) })
	m.Denied = slices.DeleteFunc(m.Denied, func(d machine.Denied) bool { return !of(d.UID, d.User) && !selected[job.OfUserPath(d.UID)] })
	m.Findings = slices.DeleteFunc(m.Findings, func(f machine.Finding) bool {
		if f.Kind == machine.OutsideJobs {
			return !slices.ContainsFunc(m.Outside, func(o machine.Outside) bool { return o.PID == f.PID && f.PID != 0 })
		}
		return f.Path != "" && !selected[f.Path] && !slices.ContainsFunc(m.Denied, func(d machine.Denied) bool { return f.Path == job.OfUserPath(d.UID) })
	})
}

// hideEnded removes ended jobs from the list, and counts them. It keeps jobs that cannot be read,
// because they need attention.
func hideEnded(m *machine.Machine) {
	before := len(m.Jobs)
	m.Jobs = slices.DeleteFunc(m.Jobs, func(j machine.Job) bool { return j.State == machine.Ended && j.Err() == nil && len(j.Reaped) == 0 })
	m.Hidden = before - len(m.Jobs)
}

// printEach prints a line for each job: by the template, or the form in which other commands accept
// it.
func (a *app) printEach(jobs []machine.Job, format *template.Template) error {
	for i := range jobs {
		if format == nil {
			if argument := argumentOf(&jobs[i]); argument != "" {
				a.out.printf("%s\n", oneWord(argument))
			}
			continue
		}
		// Another user chose the path, which must not look like several lines.
		j := jobs[i]
		j.Path, j.Error = termtext.Printable(j.Path), termtext.Printable(j.Error)
		var out strings.Builder
		if err := format.Execute(&out, &j); err != nil {
			return fmt.Errorf("%w (see ration ps --help)", err)
		}
		line := out.String()
		// Text that users chose must not move the cursor; the template itself may have tabs and
		// line breaks.
		for part := range strings.SplitSeq(line, "\n") {
			a.out.printf("%s\n", strings.Join(mapStrings(strings.Split(part, "\t"), termtext.Printable), "\t"))
		}
	}
	return nil
}

// oneWord quotes a path, which another user may have chosen, as one shell word, so that text after
// a blank or line break is not taken as another argument.
func oneWord(path string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return '?'
		}
		return r
	}, termtext.Printable(path))
}

func mapStrings(all []string, f func(string) string) []string {
	for i := range all {
		all[i] = f(all[i])
	}
	return all
}

// argumentOf returns the form in which other commands accept a job: its name or, for another user's
// job, the path of its region, which that user cannot change. Another user's job that waits has no region yet: it has
// USER/NAME, or "" if its name is unknown.
func argumentOf(j *machine.Job) string {
	if j.State == node.Waiting && j.Name == "" {
		return ""
	} else if j.State == node.Waiting {
		return node.ShownName(j)
	}
	if j.Name != "" && (node.IsOwn(j) || node.IsOfPolicy(j)) {
		return j.Name
	}
	return j.Path
}

// shownRows bounds the processes that are printed for a job of another user when all jobs are
// listed.
const shownRows = 64

// printTitle prints a job's name, state, owner and command.
func (a *app) printTitle(s machine.Job) {
	title := ""
	if s.Name != "" {
		title = a.out.style(bold, termtext.Printable(node.ShownName(&s))) + "  "
	}
	if s.State != "" {
		title += node.StateText(s, time.Now()) + "  "
	}
	if job.AllUsers() && s.Owner != "" {
		title += s.Owner + "  "
	}
	a.out.printf("%s%s\n", title, a.out.style(dim, termtext.Printable(s.Path)))
	if s.Kubernetes != nil {
		a.out.printf("  %s\n", a.out.style(dim, termtext.Printable(s.Kubernetes.String())))
	}
	if s.Placed != "" {
		a.out.paragraph(dim, 2, "placed: %s", s.Placed)
	}
	if len(s.Labels) > 0 {
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
			labels = append(labels, key+"="+s.Labels[key])
		}
		a.out.paragraph(dim, 2, "labels: %s", termtext.Printable(strings.Join(labels, ", ")))
	}
	if len(s.Command) > 0 {
		command := "  " + termtext.Printable(strings.Join(s.Command, " "))
		if a.out.tty {
			command = termtext.Truncate(command, a.out.width, "…")
		}
		a.out.printf("%s\n", a.out.style(dim, command))
	}
}

// printDevices prints a line for each device that the job may use or has used. Before any process has found
// out which devices exist, a limit for all devices is one line.
func (a *app) printDevices(j *machine.Job) {
	ranges := node.OpenRanges(j)
	for _, d := range ranges {
		line := a.deviceLine(d.Device, j.RationLent)
		if d.Last > d.Device.Device {
			line = strings.Replace(line, fmt.Sprintf("device %d ", d.Device.Device), fmt.Sprintf("devices %v ", d), 1)
		}
		a.out.printf("  %s\n", line)
		if d.Compute != nil {
			a.out.paragraph(plain, 4, "%s", d.Compute.Sentence())
		}
	}
	if len(ranges) == 0 {
		a.out.printf("  no limits, and nothing was ever used\n")
	}
}

// printGPUs prints a line for each device of the machine. Without an agent, a user's program knows that user's jobs
// only, and says so.
func (a *app) printGPUs(devices []machine.GPU) {
	whose := ""
	if !a.totals.All() {
		whose = " of yours"
	}
	number := 1
	for _, g := range devices {
		number = max(number, len(fmt.Sprint(g.Device)))
	}
	for _, g := range devices {
		line := fmt.Sprintf("GPU %-*d  ", number, g.Device)
		switch {
		case g.Failed || g.Total == 0: // a finding says why
			line += "does not answer"
		case a.out.tty:
			line += fmt.Sprintf("%s  %s  %s of %s used", g.Name, a.out.bar(float64(g.Used)/float64(g.Total), 20), humanfmt.Bytes(g.Used), humanfmt.Bytes(g.Total))
		default:
			line += fmt.Sprintf("%s  %s of %s used", g.Name, humanfmt.Bytes(g.Used), humanfmt.Bytes(g.Total))
		}
		if g.Jobs > 0 {
			line += fmt.Sprintf(", %s handed out to %s", humanfmt.Bytes(g.Rations), humanfmt.Plural(g.Jobs, "job", "jobs")+whose)
		}
		if g.Unlimited > 0 {
			line += fmt.Sprintf(", %s without a limit", humanfmt.Plural(g.Unlimited, "job", "jobs")+whose)
		}
		if g.Utilization != nil {
			line += fmt.Sprintf(", %d %% busy", *g.Utilization)
		}
		if g.Temperature != nil {
			line += fmt.Sprintf(", %d °C", *g.Temperature)
		}
		if g.Power != nil {
			line += fmt.Sprintf(", %.0f W", *g.Power)
		}
		a.out.printf("%s\n", a.out.wrap(line, 2))
	}
}

var outsideColumns = []column[machine.Outside]{
	{"PID", true, func(o machine.Outside) string { return fmt.Sprint(o.PID) }, nil},
	{"USER", false, func(o machine.Outside) string { return cmp.Or(o.User, "?") }, nil},
	{"DEVICE", true, func(o machine.Outside) string { return fmt.Sprint(o.Device) }, nil},
	{"HOLDS", true, func(o machine.Outside) string { return humanfmt.Short(o.Used) }, nil},
	{"IN", false, func(o machine.Outside) string { return o.Container }, func(o machine.Outside) bool { return o.Container != "" }},
	{"NAME", false, func(o machine.Outside) string { return cmp.Or(o.Name, "?") }, nil},
}

// printOutside prints the processes that belong to no job.
func (a *app) printOutside(all []machine.Outside) {
	for _, unread := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(all), func(o machine.Outside) bool { return (o.Region != "") != unread })
		if len(some) > 0 {
			title := map[bool]string{false: "in no job", true: "in a job that was not read"}[unread]
			a.out.printf("\n%s\n", a.out.style(bold, title))
			printTable(a.out, outsideColumns, some)
		}
	}
}

// printFindings prints the findings, except those that the jobs' own lines show.
func (a *app) printFindings(all []machine.Finding, table bool) {
	blank := true
	for _, f := range all {
		if f.Kind == machine.DeadProcesses || !table && (f.Kind == machine.Unreadable || f.Kind == machine.ShareUnkept) {
			continue
		}
		if blank {
			a.out.printf("\n")
			blank = false
		}
		a.out.printf("%s\n", a.out.wrap(a.out.style(bold, "!")+" "+termtext.Printable(f.Text+" ("+f.Remedy+")"), 2))
	}
}

// printClaimNote explains the mark of claims, if one was printed.
func (a *app) printClaimNote(marked bool) {
	if marked {
		a.out.printf("\n")
		a.out.paragraph(dim, 0, "%s.", humanfmt.ClaimNote)
	}
}

// showsClaims reports whether printJob marks any part of a job as a claim.
func showsClaims(s machine.Job) bool {
	return slices.ContainsFunc(s.Processes, func(p machine.Process) bool { return !p.Verified })
}

// checkUser returns an error if nothing of a user is shown because there is no such user.
func checkUser(m *machine.Machine, user string) error {
	if user == "" || len(m.Jobs)+len(m.Waiting)+m.Hidden > 0 {
		return nil
	}
	if _, err := proc.UID(user); errors.Is(err, proc.ErrNoUser) {
		return usageError("--user=%q: no such user", user)
	}
	return nil
}

// printHidden prints how much was left out of the jobs that were selected.
func (a *app) printHidden(m *machine.Machine, s node.Selection) {
	if m.Hidden == 0 {
		return
	}
	text := humanfmt.Plural(m.Hidden, "job has ended", "jobs have ended") + " (ration ps -a shows " + humanfmt.ItOrThem(m.Hidden) + ")"
	switch {
	case len(m.Jobs)+len(m.Waiting) > 0:
		a.out.printf("\n")
	case s.User != "" || len(s.Filters) > 0:
		text = "No job that matches is running. " + text
	default:
		text = "No job runs in " + m.Folder + ". " + text
	}
	a.out.paragraph(dim, 0, "%s", text)
}
