package cli

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
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

// psSelection says which jobs ps shows, and in which order.
type psSelection struct {
	user    string
	filters []string // KEY=VALUE
	sort    string
}

func (s *psSelection) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.sort, "sort", "", "sort by `key`: mem, name, user, age or gpu")
	flags.StringVarP(&s.user, "user", "u", "", "show only jobs of this `user`")
	flags.StringArrayVarP(&s.filters, "filter", "f", nil, "show only jobs with `KEY=VALUE`: name, user, state, gpu or command")
}

// jobOrders are the values of --sort. Jobs that compare as equal keep the order by state.
var jobOrders = map[string]func(a, b *machine.Job) int{
	"mem":  func(a, b *machine.Job) int { return cmp.Compare(usedBy(b), usedBy(a)) },
	"name": func(a, b *machine.Job) int { return cmp.Compare(shownName(a), shownName(b)) },
	"user": func(a, b *machine.Job) int { return cmp.Compare(a.Owner, b.Owner) },
	"age":  func(a, b *machine.Job) int { return began(a).Compare(began(b)) },
	"gpu":  func(a, b *machine.Job) int { return slices.Compare(gpusOf(a), gpusOf(b)) },
}

// jobFilters are the keys of --filter, with a test of a value.
var jobFilters = map[string]func(j *machine.Job, value string) bool{
	"name":    func(j *machine.Job, value string) bool { return matches(value, shownName(j)) || matches(value, j.Name) },
	"user":    func(j *machine.Job, value string) bool { return isUser(value)(j.UID, j.Owner) },
	"state":   func(j *machine.Job, value string) bool { return j.State == value },
	"command": func(j *machine.Job, value string) bool { return strings.Contains(strings.Join(j.Command, " "), value) },
	"gpu": func(j *machine.Job, value string) bool {
		return slices.ContainsFunc(gpusOf(j), func(d int) bool { return strconv.Itoa(d) == value })
	},
}

func matches(pattern, name string) bool {
	is, err := path.Match(pattern, name)
	return err == nil && is
}

// check returns an error for a key that does not exist, before any job is read.
func (s psSelection) check() error {
	if _, is := jobOrders[s.sort]; !is && s.sort != "" {
		return usageError("--sort %s: no such key (use mem, name, user, age or gpu)", s.sort)
	}
	for _, f := range s.filters {
		key, value, is := strings.Cut(f, "=")
		switch {
		case !is || jobFilters[key] == nil:
			return usageError("--filter %s: not a KEY=VALUE (the keys are name, user, state, gpu and command, as in state=running or name='fold*')", f)
		case key == "state" && !slices.Contains(jobStates, value):
			return usageError("--filter %s: no such state (use %s)", f, strings.Join(jobStates, ", "))
		case key == "name" && !validPattern(value):
			return usageError("--filter %s: not a pattern (use * and ?, as in name='fold*')", f)
		}
	}
	return nil
}

var jobStates = []string{machine.Starting, machine.Running, machine.Idle, machine.Ended}

func validPattern(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err == nil
}

// apply removes the jobs that are not selected, and sorts the others.
func (s psSelection) apply(jobs []machine.Job) []machine.Job {
	jobs = slices.DeleteFunc(jobs, func(j machine.Job) bool {
		if s.user != "" && !jobFilters["user"](&j, s.user) {
			return true
		}
		return slices.ContainsFunc(s.filters, func(f string) bool {
			key, value, _ := strings.Cut(f, "=")
			return !jobFilters[key](&j, value)
		})
	})
	sortJobs(jobs)
	if order := jobOrders[s.sort]; order != nil {
		slices.SortStableFunc(jobs, func(a, b machine.Job) int { return order(&a, &b) })
	}
	return jobs
}

// usedBy returns the memory that a job holds on all devices.
func usedBy(j *machine.Job) (bytes uint64) {
	for _, d := range j.Devices {
		bytes += d.Used
	}
	return bytes
}

// began returns when a job's command was started or, if that is unknown, when the job was made.
func began(j *machine.Job) time.Time {
	if j.Started.IsZero() {
		return j.Created
	}
	return j.Started
}

// devicesOf returns the devices that a job has used or may use. It returns nil for a limit on all devices, before
// a process has found out which devices exist.
func devicesOf(j *machine.Job) (out []machine.Device) {
	known := slices.ContainsFunc(j.Devices, func(d machine.Device) bool { return d.Total > 0 || d.Peak > 0 })
	for _, d := range j.Devices {
		forbidden := d.Limited && d.Limit == 0 && d.Used == 0
		if known && !forbidden && (d.Total > 0 || d.Peak > 0) {
			out = append(out, d)
		}
	}
	return out
}

func gpusOf(j *machine.Job) (out []int) {
	for _, d := range devicesOf(j) {
		out = append(out, d.Device)
	}
	return out
}

// gpuText formats the numbers of devices, as 0,2-3.
func gpuText(j *machine.Job) string {
	var parts []string
	all := gpusOf(j)
	for i := 0; i < len(all); {
		last := i
		for last+1 < len(all) && all[last+1] == all[last]+1 {
			last++
		}
		text := strconv.Itoa(all[i])
		if last > i {
			text += "-" + strconv.Itoa(all[last])
		}
		parts, i = append(parts, text), last+1
	}
	return cmp.Or(strings.Join(parts, ","), "any")
}

// jobLimitText formats a job's limit: 10G, for several devices 2x10G, or their sum if they differ.
func jobLimitText(j *machine.Job) string {
	devices := devicesOf(j)
	if len(devices) == 0 && len(j.Devices) > 0 {
		devices = j.Devices[:1]
	}
	var sum uint64
	equal := true
	for _, d := range devices {
		if !d.Limited {
			return "none"
		}
		sum += d.Limit
		equal = equal && d.Limit == devices[0].Limit
	}
	switch {
	case len(devices) == 0:
		return "none"
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
	return j.State
}

// noteText says what needs attention.
func noteText(j *machine.Job) string {
	var notes []string
	var over uint64
	for _, d := range j.Devices {
		over += d.Over()
	}
	if over > 0 {
		notes = append(notes, "over by "+humanfmt.Short(over))
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

// maxShownName bounds the column of names, so that a long one leaves room for the others; --wide shows all.
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

// jobColumns are the columns of the table.
func jobColumns(wide bool) []column[machine.Job] {
	always := func(machine.Job) bool { return wide }
	name := func(j machine.Job) string {
		if wide {
			return shownName(&j)
		}
		return cutName(shownName(&j))
	}
	return []column[machine.Job]{
		{"JOB", false, name, nil},
		{"USER", false, func(j machine.Job) string { return cmp.Or(j.Owner, "?") }, func(j machine.Job) bool { return wide || !isCallers(&j) }},
		{"STATE", false, func(j machine.Job) string { return stateText(&j) }, nil},
		{"AGE", true, func(j machine.Job) string { return ageText(&j) }, nil},
		{"GPU", false, func(j machine.Job) string { return gpuText(&j) }, nil},
		{"USED", true, func(j machine.Job) string { return humanfmt.Short(usedBy(&j)) }, nil},
		{"LIMIT", true, func(j machine.Job) string { return jobLimitText(&j) }, nil},
		{"PEAK", true, func(j machine.Job) string { return humanfmt.Short(peakOf(&j)) }, always},
		{"PROCS", true, func(j machine.Job) string { return fmt.Sprint(j.ProcessCount()) }, nil},
		{"NOTE", false, func(j machine.Job) string { return noteText(&j) }, func(j machine.Job) bool { return noteText(&j) != "" }},
		{"LAUNCHER", false, func(j machine.Job) string { return cmp.Or(j.Launcher, "?") }, always},
		{"POD", false, func(j machine.Job) string { return j.Kubernetes.String() }, func(j machine.Job) bool { return wide && j.Kubernetes != nil }},
		{"REGION", false, func(j machine.Job) string { return j.Path }, always},
		{"COMMAND", false, func(j machine.Job) string { return strings.Join(j.Command, " ") }, func(j machine.Job) bool { return len(j.Command) > 0 }},
	}
}

func ageText(j *machine.Job) string {
	if began(j).IsZero() {
		return "-"
	}
	return node.Ago(time.Since(began(j)))
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

// printJobTable prints a line for each job, and then what was returned to jobs.
func (a *app) printJobTable(jobs []machine.Job, wide bool) {
	out := a.out
	if wide {
		out.tty = false // do not cut lines
	}
	printTable(out, jobColumns(wide), jobs)
	for i := range jobs {
		var held uint64
		for _, p := range jobs[i].Reaped {
			held += p.Held()
		}
		if n := len(jobs[i].Reaped); n > 0 {
			a.out.paragraph(plain, 2, "%s: %s dead: returned %s to the job", shownName(&jobs[i]), humanfmt.Plural(n, "process was", "processes were"), humanfmt.Bytes(held))
		}
	}
}
