package node

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/machine"
)

// Selection says which jobs ration ps and ration top show, and in which order.
type Selection struct {
	User    string   // name or UID; empty for all users
	Filters []string // KEY=VALUE; all must match
	Sort    string   // a key of Sorts, or empty
}

// jobOrders are the keys that jobs can be sorted by.
var jobOrders = map[string]func(a, b *machine.Job) int{
	"busy": func(a, b *machine.Job) int {
		return cmp.Or(byState(a, b), cmp.Compare(busy(b), busy(a)), cmp.Compare(Used(b), Used(a)))
	},
	"mem":  func(a, b *machine.Job) int { return cmp.Compare(Used(b), Used(a)) },
	"name": func(a, b *machine.Job) int { return cmp.Compare(ShownName(a), ShownName(b)) },
	"user": func(a, b *machine.Job) int { return cmp.Compare(a.Owner, b.Owner) },
	"age":  func(a, b *machine.Job) int { return Began(a).Compare(Began(b)) },
	"gpu":  func(a, b *machine.Job) int { return slices.Compare(gpusOf(a), gpusOf(b)) },
}

// Sorts returns the keys that jobs can be sorted by.
func Sorts() []string { return slices.Sorted(maps.Keys(jobOrders)) }

// Compare returns the order of two jobs by a key. Jobs that are equal in it, and all jobs if there is no key, are in the
// order of their states.
func Compare(key string) func(a, b *machine.Job) int {
	order := jobOrders[key]
	if order == nil {
		return byState
	}
	return func(a, b *machine.Job) int {
		return cmp.Or(order(a, b), byState(a, b), cmp.Compare(a.Title(), b.Title()), cmp.Compare(a.Path, b.Path))
	}
}

// jobStates are the states, in the order in which jobs are shown.
var jobStates = []string{machine.Running, machine.Idle, machine.Starting, Waiting, "", machine.Ended}

func byState(a, b *machine.Job) int {
	return cmp.Compare(slices.Index(jobStates, a.State), slices.Index(jobStates, b.State))
}

// busy returns how much of the devices' time a job has, in steps of ten per cent: with smaller
// steps jobs would swap places at every sample.
func busy(j *machine.Job) int {
	sum := 0.0
	for _, d := range j.Devices {
		sum += max(0, TimeOn(j, d.Device))
	}
	return int(sum/10 + 0.5)
}

// TimeOn returns how much of a device's time all processes of a job together had lately, in per
// cent; -1 if that is unknown.
func TimeOn(j *machine.Job, device int) float64 {
	percent := -1.0
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if h.Device == device && h.Time != nil {
				percent = max(percent, 0) + h.Time.Percent
			}
		}
	}
	return percent
}

// jobFilters are the keys of filters, with a test of a value.
var jobFilters = map[string]func(j *machine.Job, value string) bool{
	"name": func(j *machine.Job, value string) bool {
		_, name, _ := strings.Cut(j.Name, "/") // of a run under a policy, as its user may write it
		return matches(value, ShownName(j)) || matches(value, j.Name) || name != "" && matches(value, name)
	},
	"user":    func(j *machine.Job, value string) bool { return IsUser(value)(j.UID, j.Owner) },
	"state":   func(j *machine.Job, value string) bool { return StateWord(j) == value },
	"command": func(j *machine.Job, value string) bool { return strings.Contains(strings.Join(j.Command, " "), value) },
	"gpu": func(j *machine.Job, value string) bool {
		return slices.ContainsFunc(gpusOf(j), func(d int) bool { return strconv.Itoa(d) == value })
	},
}

func matches(pattern, name string) bool {
	is, err := path.Match(pattern, name)
	return err == nil && is
}

// Check returns an error for a key or a value that does not exist.
func (s Selection) Check() error {
	if jobOrders[s.Sort] == nil && s.Sort != "" {
		return fmt.Errorf("--sort %s: no such key (use %s)", s.Sort, strings.Join(Sorts(), ", "))
	}
	for _, f := range s.Filters {
		if err := CheckFilter(f); err != nil {
			return fmt.Errorf("--filter %w", err)
		}
	}
	return nil
}

// CheckFilter returns an error if a text is not a filter.
func CheckFilter(filter string) error {
	key, value, is := strings.Cut(filter, "=")
	states := slices.DeleteFunc(slices.Clone(jobStates), func(s string) bool { return s == "" })
	states = append(states, machine.FallingAsleep, machine.Asleep, machine.Waking, machine.Stopped)
	_, pattern := path.Match(value, "")
	switch {
	case !is || jobFilters[key] == nil:
		return fmt.Errorf("%s: not a KEY=VALUE (the keys are name, user, state, gpu and command, as in state=running or name='fold*')", filter)
	case key == "state" && !slices.Contains(states, value):
		return fmt.Errorf("%s: no such state (use %s)", filter, strings.Join(states, ", "))
	case key == "name" && pattern != nil:
		return fmt.Errorf("%s: not a pattern (use * and ?, as in name='fold*')", filter)
	}
	return nil
}

// Has reports whether a job is selected.
func (s Selection) Has(j *machine.Job) bool {
	if s.User != "" && !jobFilters["user"](j, s.User) {
		return false
	}
	return !slices.ContainsFunc(s.Filters, func(f string) bool {
		key, value, _ := strings.Cut(f, "=")
		return jobFilters[key] == nil || !jobFilters[key](j, value)
	})
}

// Apply removes the jobs that are not selected, and sorts the others.
func (s Selection) Apply(jobs []machine.Job) []machine.Job {
	jobs = slices.DeleteFunc(jobs, func(j machine.Job) bool { return !s.Has(&j) })
	order := Compare(s.Sort)
	slices.SortStableFunc(jobs, func(a, b machine.Job) int { return order(&a, &b) })
	return jobs
}

// IsUser returns a function that reports whether a UID and a name belong to user, which is a name
// or a number. If a number is also the name of another user, it means that user (proc.UID).
func IsUser(user string) func(uid int, name string) bool {
	if _, err := strconv.Atoi(user); err != nil {
		return func(_ int, name string) bool { return name == user }
	}
	numbered, err := proc.UID(user)
	return func(uid int, _ string) bool { return err == nil && uid == numbered }
}

// Used returns the memory that a job holds on all devices.
func Used(j *machine.Job) (bytes uint64) {
	for _, d := range j.Devices {
		bytes += d.Used
	}
	return bytes
}

// Began returns when a job's command was started or, if that is unknown, when the job was made.
func Began(j *machine.Job) time.Time {
	if j.Started.IsZero() {
		return j.Created
	}
	return j.Started
}

// DeniedTo returns how many rations a policy refused to the user of a job, if it is the job of all programs of the user.
func DeniedTo(all []machine.Denied, j *machine.Job) uint64 {
	if j.Path != job.OfUserPath(j.UID) {
		return 0
	}
	return machine.DeniedCount(all, func(d *machine.Denied) bool { return d.UID == j.UID })
}

// DevicesOf returns the devices that a job has used or may use. If it may use none, because its user's runs have the whole
// ration, these are the devices of the ration. It returns nil for a limit on all devices, before a process has found out
// which devices exist.
func DevicesOf(j *machine.Job) (out []machine.Device) {
	var known []machine.Device
	for _, d := range j.Devices {
		if d.Total == 0 && d.Peak == 0 {
			continue
		}
		known = append(known, d)
		if forbidden := d.Limited && d.Limit == 0 && d.Used == 0 && !j.RationLent; !forbidden {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return known
	}
	return out
}

func gpusOf(j *machine.Job) (out []int) {
	if j.Elsewhere {
		return nil
	}
	for _, d := range DevicesOf(j) {
		out = append(out, d.Device)
	}
	return out
}

// GPUText formats the numbers of a job's devices, as 0,2-3.
func GPUText(j *machine.Job) string {
	if j.Elsewhere {
		return "none"
	}
	return cmp.Or(humanfmt.Ranges(gpusOf(j), ",", "-"), "any")
}

// IsOwn reports whether a job is in this user's folder of jobs.
func IsOwn(j *machine.Job) bool { return strings.HasPrefix(j.Path, job.Folder()+"/") }

// IsOfPolicy reports whether a policy made a job. Its name, USER or USER/NAME, is root's word.
func IsOfPolicy(j *machine.Job) bool { return job.ShownName("", j.Path) != "" }

// ShownName returns the name of a job for people: its name or, for another user's job, USER/NAME.
func ShownName(j *machine.Job) string {
	switch {
	case j.Name == "":
		return j.Path
	case IsOwn(j) || IsOfPolicy(j) || j.Owner == "" || strings.Contains(j.Name, "/"): // also of a run that has ended
		return j.Name
	}
	return j.Owner + "/" + j.Name
}
