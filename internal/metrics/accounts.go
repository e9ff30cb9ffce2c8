package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"ration/internal/usage"
	"ration/machine"
)

// MaxUsers bounds the users with series of their own.
const MaxUsers = 256

// Accounts are the totals of the accounts of usage. They never decrease while the file of the accounts is kept.
type Accounts interface {
	JobTotals(of []usage.Subject) (map[usage.Subject]usage.Sums, error)
	UserTotals() (map[usage.Subject]usage.Sums, error)
}

// Metrics from the accounts. The label source is measured (by the library), shared (measured by the library while others
// may have worked on the device) or sampled (by the driver).
var (
	jobHeld     = desc("job_memory_byte_seconds_total", "Memory of the device that the user's jobs of this name held, over time, by the agent's accounts.", "user", "job_name", "device")
	jobHeldIdle = desc("job_memory_idle_byte_seconds_total", "The part of it that was held while the job did no work on the device.", "user", "job_name", "device")
	jobAsleep   = desc("job_asleep_seconds_total", "Time for which the user's jobs of this name slept, with memory of the device put aside, by the agent's accounts.", "user", "job_name", "device")
	jobTime     = desc("job_gpu_seconds_total", "The device's time that the user's jobs of this name had, by the agent's accounts.", "user", "job_name", "device", "source")

	userHeld   = desc("user_memory_byte_seconds_total", "Memory that the user's jobs held, over time, by the agent's accounts.", "user")
	userIdle   = desc("user_memory_idle_byte_seconds_total", "The part of it that was held while the job did no work on the device.", "user")
	userAsleep = desc("user_asleep_seconds_total", "Time for which the user's jobs slept, added up over jobs and devices, by the agent's accounts.", "user")
	userTime   = desc("user_gpu_seconds_total", "Time of devices that the user's jobs had, by the agent's accounts.", "user", "source")
)

// jobTotals exports the totals of the jobs with series. Without accounts, or if their file cannot be read, there
// are none: a counter must not begin at 0 again. A device that no job of a name has used has none; both a total and the
// most that a job held stay, so a counter that was there stays as well.
func (e emitter) jobTotals(a Accounts, all []series) {
	var subjects []usage.Subject
	for i := range all {
		for _, d := range all[i].devices {
			subjects = append(subjects, d.subjects...)
		}
	}
	totals, err := a.JobTotals(subjects)
	if err != nil {
		return
	}
	for i := range all {
		s := &all[i]
		for device, d := range s.devices {
			var sum usage.Sums
			used := d.peak > 0
			for _, subject := range d.subjects {
				total, known := totals[subject]
				sum, used = sum.Plus(total), used || known
			}
			if len(d.subjects) == 0 || !used {
				continue
			}
			labels := []string{s.user, s.name, strconv.Itoa(device)}
			e.totals(jobHeld, jobHeldIdle, jobAsleep, jobTime, sum, labels...)
		}
	}
}

// totals exports sums.
func (e emitter) totals(held, idle, asleep, time *metric, s usage.Sums, labels ...string) {
	e.counter(held, float64(s.Held), labels...)
	e.counter(idle, float64(s.Idle), labels...)
	e.counter(asleep, float64(s.Asleep)/1e9, labels...)
	for source, ns := range map[string]uint64{"measured": s.Measured - min(s.Measured, s.Shared), "shared": s.Shared, "sampled": s.Sampled} {
		e.counter(time, float64(ns)/1e9, append(slices.Clip(labels), source)...)
	}
}

// userTotals exports the totals of users: at most MaxUsers, those that held most first. As with jobs, delegated
// UIDs take turns with the user that they belong to.
func (e emitter) userTotals(a Accounts, visible func(uid int) bool) {
	totals, err := a.UserTotals()
	if err != nil {
		return
	}
	users := slices.SortedFunc(maps.Keys(totals), func(a, b usage.Subject) int {
		return cmp.Or(cmp.Compare(totals[b].Held, totals[a].Held), cmp.Compare(a.UID, b.UID), cmp.Compare(a.Owner, b.Owner))
	})
	turn, next := map[usage.Subject]int{}, map[int]int{}
	for _, u := range users {
		account := accountOf(u.UID)
		turn[u] = next[account]
		next[account]++
	}
	slices.SortStableFunc(users, func(a, b usage.Subject) int { return cmp.Compare(turn[a], turn[b]) })
	sums := map[string]usage.Sums{} // by label: two names may have one
	for _, u := range users {
		name := label(cmp.Or(u.Owner, usage.UnknownUser))
		if _, known := sums[name]; (known || len(sums) < MaxUsers) && (visible == nil || visible(u.UID)) {
			sums[name] = sums[name].Plus(totals[u])
		}
	}
	for name, sum := range sums {
		e.totals(userHeld, userIdle, userAsleep, userTime, sum, name)
	}
}

// subjectOf returns the account of a job on a device. It has none to export until the device's UUID is known: the
// account of a device's number would continue as another one.
func subjectOf(j *machine.Job, d *machine.Device) (s usage.Subject, known bool) {
	return usage.Subject{UID: j.UID, Owner: j.Owner, Job: j.Title(), Device: d.UUID}, d.UUID != ""
}
