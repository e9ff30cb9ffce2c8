package metrics

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/internal/usage"
	"ration/machine"
)

const (
	// MaxJobs bounds the jobs with series of their own: those that have held most.
	MaxJobs = 256
	// MaxLabel bounds the bytes of a label value.
	MaxLabel = 128
	// Others is the user label and the name label of the series with the sum of all other jobs. No
	// job can have this name.
	Others = "(others)"
)

// label turns a text that another user chose into a label value.
func label(text string) string {
	text = termtext.Printable(strings.ToValidUTF8(text, "?"))
	if len(text) <= MaxLabel {
		return text
	}
	const mark = "…"
	cut := MaxLabel - len(mark)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}

// podLabel names the pods of a job in one label, so that a job has one series however many pods it
// has.
func podLabel(k *machine.Kubernetes) string {
	switch len(k.Pods) {
	case 0:
		return ""
	case 1:
		return label(k.Pods[0].Name)
	}
	return "(several)"
}

// series has the values of one set of labels: of a job, or of several jobs with one name, because a
// user can have jobs in several folders.
type series struct {
	user, name string
	others     bool
	processes  int
	deaths     uint64
	gaveUp     float64        // part of the reads, in the job where it is largest
	created    time.Time      // of the oldest job
	idle       time.Time      // since when all jobs that hold memory are idle
	works      bool           // one of them is not
	sleep      map[string]int // jobs by sleepState
	wakeWait   time.Time      // since when one of them waits for room to wake
	kubernetes *machine.Kubernetes
	devices    map[int]*deviceSeries
}

// deviceSeries has the values of one device.
type deviceSeries struct {
	limited                    bool
	used, limit, peak, refused uint64
	aside                      uint64
	share, cap                 int
	computeUsed, computeWaited uint64
	subjects                   []usage.Subject // accounts; jobs of one name share one
}

// createdSeconds returns the creation time of the oldest job in Unix seconds; 0 if it is unknown.
func (s *series) createdSeconds() float64 {
	if s.created.IsZero() {
		return 0
	}
	return float64(s.created.UnixNano()) / 1e9
}

// group divides the unfinished jobs into series. It also returns how many jobs are in the series
// Others.
func group(m *machine.Machine) (out []series, others int) {
	number := map[string]int{}
	for i := range m.Devices {
		number[m.Devices[i].UUID] = m.Devices[i].Device
	}
	wakes := map[string]time.Time{} // by the path of the region
	for i := range m.Waiting {
		if w := &m.Waiting[i]; w.Wakes {
			wakes[w.Path] = w.Since
		}
	}
	rest := series{user: Others, name: Others, others: true, devices: map[int]*deviceSeries{}, sleep: map[string]int{}}
	index := map[[2]string]int{}
	for _, j := range byTurns(m.Jobs) {
		key := [2]string{label(j.Owner), label(j.Title())}
		i, known := index[key]
		switch {
		case known:
			out[i].add(j, number)
		case len(out) < MaxJobs:
			index[key] = len(out)
			out = append(out, series{user: key[0], name: key[1], created: j.Created, devices: map[int]*deviceSeries{}, sleep: map[string]int{}})
			i = len(out) - 1
			out[i].add(j, number)
		default:
			others++
			rest.add(j, number)
			continue
		}
		if since := wakes[j.Path]; j.Sleep == machine.Asleep && !since.IsZero() && (out[i].wakeWait.IsZero() || since.Before(out[i].wakeWait)) {
			out[i].wakeWait = since
		}
	}
	if others > 0 {
		out = append(out, rest)
	}
	return out, others
}

// accountOf is a variable for tests.
var accountOf = proc.Account

// byTurns returns the unfinished jobs in this order: the largest job of each user, then the second
// largest of each, and so on. So the smallest jobs of the users with most jobs have no series, and a
// user with thousands of jobs, or of delegated UIDs, takes no series from other users. A job's size is
// the most that it ever held, which never decreases, so that series do not come and go with each allocation.
func byTurns(jobs []machine.Job) []*machine.Job {
	var out []*machine.Job
	for i := range jobs {
		if jobs[i].State != machine.Ended {
			out = append(out, &jobs[i])
		}
	}
	size := map[*machine.Job]uint64{}
	for _, j := range out {
		for i := range j.Devices {
			size[j] += min(j.Devices[i].Peak, ^size[j])
		}
	}
	slices.SortFunc(out, func(a, b *machine.Job) int {
		return cmp.Or(cmp.Compare(size[b], size[a]), a.Created.Compare(b.Created), cmp.Compare(a.Path, b.Path))
	})
	turn, next := map[*machine.Job]int{}, map[string]int{}
	for _, j := range out {
		user := j.Owner
		if account := accountOf(j.UID); account != j.UID {
			user = fmt.Sprint("account ", account) // no user name contains a space
		}
		turn[j] = next[user]
		next[user]++
	}
	slices.SortStableFunc(out, func(a, b *machine.Job) int { return cmp.Compare(turn[a], turn[b]) })
	return out
}

// sleepState returns whether a job sleeps, as a label value.
func sleepState(j *machine.Job) string {
	switch {
	case j.Sleep != "":
		return strings.ReplaceAll(j.Sleep, " ", "_")
	case j.CannotSleep != "":
		return "cannot_sleep"
	}
	return "awake"
}

// add adds a job. number maps the UUID of a device to its number on the machine.
func (s *series) add(j *machine.Job, number map[string]int) {
	s.processes += j.LivingCount()
	s.deaths += j.Died
	s.sleep[sleepState(j)]++
	s.gaveUp = max(s.gaveUp, j.Reads.BestEffortRatio)
	s.kubernetes = cmp.Or(s.kubernetes, j.Kubernetes)
	if j.Created.Before(s.created) {
		s.created = j.Created
	}
	switch {
	case j.IdleSince.IsZero() && j.Held() > 0:
		s.works, s.idle = true, time.Time{}
	case j.IdleSince.After(s.idle) && !s.works:
		s.idle = j.IdleSince
	}
	for i := range j.Devices {
		d := &j.Devices[i]
		at, known := number[d.UUID]
		if !known {
			at = d.Device
		}
		out := s.devices[at]
		if out == nil {
			out = &deviceSeries{}
			s.devices[at] = out
		}
		if subject, known := subjectOf(j, d); known && !s.others && !slices.Contains(out.subjects, subject) {
			out.subjects = append(out.subjects, subject)
		}
		out.used += d.Used
		out.peak += d.Peak
		out.aside += min(d.Aside, ^out.aside)
		out.refused += d.Refused
		if d.Limited {
			out.limited, out.limit = true, out.limit+min(d.Limit, ^out.limit)
		}
		if d.Compute != nil {
			out.share += d.Compute.Share
			out.cap += d.Compute.Max
			out.computeUsed += d.Compute.Used
			out.computeWaited += d.Compute.Waited
		}
	}
}
