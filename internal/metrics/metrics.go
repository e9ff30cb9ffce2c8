// Package metrics exports the state of a machine to Prometheus: its devices, its jobs, and findings
// for the operator. docs/monitoring.md lists the metrics.
//
// Every series uses storage of the Prometheus server, and tenants choose the names of jobs. So the
// number of series is bounded, whatever tenants do: at most MaxJobs jobs have series of their own,
// the largest of each user in turn, and one series has the sum of the other jobs. Labels are
// printable, valid UTF-8 and at most MaxLabel bytes long.
package metrics

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"ration/machine"
)

// Options select what is exported.
type Options struct {
	Version string // version of ration
	Jobs    bool   // export series of each job, with its name and its user
	// Accounts has the totals of jobs and users, if Jobs is set; nil if none are kept.
	Accounts Accounts
	Visible  func(uid int) bool // users whose totals are exported; nil for all
}

// Write writes the metrics of a machine in the text format of Prometheus.
func Write(w io.Writer, m *machine.Machine, opts Options) error {
	return WriteText(w, MachineCollector(func() *machine.Machine { return m }, opts))
}

// Metrics of the machine.
var (
	buildInfo = desc("build_info", "The version of ration that reports; always 1.", "version")

	deviceInfo        = desc("device_info", "A device of the machine; always 1.", "device", "uuid", "name", "mig")
	deviceSize        = desc("device_memory_size_bytes", "Size of the device's memory.", "device")
	deviceUsed        = desc("device_memory_used_bytes", "Memory of the device in use by all processes and the driver itself, as the driver counts it.", "device")
	deviceRationed    = desc("device_memory_rationed_bytes", "Limits of all jobs on the device that have not ended, together. A job that sleeps counts until the driver counts no memory of it.", "device")
	deviceOutside     = desc("device_memory_outside_bytes", "Memory of the device held by processes that belong to no job, as the driver counts it. Those of users that a policy exempts do not count.", "device")
	deviceExempt      = desc("device_memory_exempt_bytes", "Memory of the device held by processes in no job of users that a policy exempts, as the driver counts it.", "device")
	deviceOverLimit   = desc("device_memory_over_limit_bytes", "Memory of the device that the driver counts for jobs beyond their limits.", "device")
	outsideProcesses  = desc("device_outside_processes", "Processes that hold memory of the device and belong to no job.", "device")
	rationedJobs      = desc("device_rationed_jobs", "Jobs with a limit on the device that have not ended.", "device")
	unlimitedJobs     = desc("device_unlimited_jobs", "Jobs that hold memory of the device and have no limit there.", "device")
	deviceTemperature = desc("device_temperature_celsius", "Temperature of the device.", "device")
	devicePower       = desc("device_power_watts", "Power that the device draws.", "device")
	deviceBusy        = desc("device_utilization_ratio", "Part of the time in which the device had work lately, as the driver samples it.", "device")

	jobsByState       = desc("jobs", "Jobs by their state.", "state")
	jobsWithoutSeries = desc("jobs_without_series", "Jobs that have not ended and are only in the series of others.")
	policyRefused     = desc("policy_refused_total", "Rations that the machine's policy refused to the user since boot.", "user")
	findings          = desc("findings", "What an operator should know of the machine, by kind: ration ps says it in sentences.", "kind")
)

// Metrics of a job.
var (
	jobUsed          = desc("job_memory_used_bytes", "Memory of the device that the job's processes hold.", "user", "job_name", "device")
	jobLimit         = desc("job_memory_limit_bytes", "The job's limit on the device; missing without one.", "user", "job_name", "device")
	jobAside         = desc("job_memory_aside_bytes", "Memory of the device that is in host memory because the job sleeps; only while there is some.", "user", "job_name", "device")
	jobPeak          = desc("job_memory_peak_bytes", "The most that was in use of the device at once.", "user", "job_name", "device")
	jobRefusals      = desc("job_refusals_total", "Requests for memory of the device that were refused.", "user", "job_name", "device")
	jobShare         = desc("job_compute_share_ratio", "Part of the device's time that the job has at least; missing without a share.", "user", "job_name", "device")
	jobCap           = desc("job_compute_cap_ratio", "Part of the device's time that the job has at most; missing without a cap.", "user", "job_name", "device")
	jobComputeUsed   = desc("job_compute_used_seconds_total", "The device's time that the job used, as measured for a cap; missing without one.", "user", "job_name", "device")
	jobComputeWaited = desc("job_compute_waited_seconds_total", "Time that launches waited for the cap, over all threads; missing without one.", "user", "job_name", "device")

	jobProcesses = desc("job_processes", "Living processes of the job.", "user", "job_name")
	jobDeaths    = desc("job_deaths_total", "Processes of the job that died without leaving it.", "user", "job_name")
	jobGaveUp    = desc("job_best_effort_reads_ratio", "Part of the reads of the job's accounts that gave up, and took them while they changed.", "user", "job_name")
	jobIdle      = desc("job_idle_start_time_seconds", "Since when the job holds memory and does nothing on its devices, in seconds since 1970; only while an agent finds it idle.", "user", "job_name")
	jobSleep     = desc("job_sleep_state", "Whether the job sleeps: how many jobs of this name are in the state, which is awake, falling_asleep, asleep, waking or cannot_sleep (it should sleep, and cannot).", "user", "job_name", "state")
	jobWakeWait  = desc("job_wake_wait_start_time_seconds", "Since when the job sleeps on only because there is no room to wake it, in seconds since 1970; only while that is so.", "user", "job_name")
	jobStarted   = desc("job_start_time_seconds", "When the job was made, in seconds since 1970.", "user", "job_name")
	jobPod       = desc("job_kubernetes_info", "The claim that the job was made for, and its pod; always 1. Missing for other jobs.", "user", "job_name", "namespace", "claim", "pod")
)

// MachineCollector returns a collector of the metrics of a machine. read returns the current one.
func MachineCollector(read func() *machine.Machine, opts Options) Collector {
	return func(e emitter) {
		m := read()
		e.gauge(buildInfo, 1, label(opts.Version))
		e.devices(m)
		e.states(m)
		if !opts.Jobs {
			return
		}
		series, others := group(m)
		e.gauge(jobsWithoutSeries, float64(others))
		for i := range series {
			e.job(&series[i])
		}
		if opts.Accounts != nil {
			e.jobTotals(opts.Accounts, series)
			e.userTotals(opts.Accounts, opts.Visible)
		}
	}
}

func (e emitter) devices(m *machine.Machine) {
	outside, exempt, processes := map[int]uint64{}, map[int]uint64{}, map[int]int{}
	for i := range m.Outside {
		if o := &m.Outside[i]; o.Exempt {
			exempt[o.Device] += o.Used
		} else {
			outside[o.Device] += o.Used
			processes[o.Device]++
		}
	}
	over := map[int]uint64{} // by index in m.Devices
	for i := range m.Jobs {
		for n := range m.Jobs[i].Devices {
			d := &m.Jobs[i].Devices[n]
			at := m.DeviceOf(d)
			if at < 0 { // by a UUID that its processes wrote, which must not hide it
				at = max(0, slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.Device == d.Device }))
			}
			over[at] += d.Over()
		}
	}
	for i := range m.Devices {
		g := &m.Devices[i]
		device := strconv.Itoa(g.Device)
		e.gauge(deviceInfo, 1, device, label(g.UUID), label(g.Name), strconv.FormatBool(g.MIG))
		if g.Total > 0 { // unknown of a GPU that has failed; 0 would be less than any limit
			e.gauge(deviceSize, float64(g.Total), device)
		}
		if !g.Failed {
			e.gauge(deviceUsed, float64(g.Used), device)
		}
		e.gauge(deviceRationed, float64(g.Rations), device)
		e.gauge(deviceOutside, float64(outside[g.Device]), device)
		e.gauge(deviceExempt, float64(exempt[g.Device]), device)
		e.gauge(deviceOverLimit, float64(over[i]), device)
		e.gauge(outsideProcesses, float64(processes[g.Device]), device)
		e.gauge(rationedJobs, float64(g.Jobs), device)
		e.gauge(unlimitedJobs, float64(g.Unlimited), device)
		if g.Temperature != nil {
			e.gauge(deviceTemperature, float64(*g.Temperature), device)
		}
		if g.Power != nil {
			e.gauge(devicePower, *g.Power, device)
		}
		if g.Utilization != nil {
			e.gauge(deviceBusy, float64(*g.Utilization)/100, device)
		}
	}
}

// kinds lists all kinds of findings, so that a kind without a finding is exported as 0.
var kinds = []string{machine.Overbooked, machine.OverLimit, machine.Drift, machine.Unreadable, machine.OutsideJobs, machine.DeadProcesses, machine.ShareUnkept,
	machine.GaveUp, machine.Unanswering, machine.Flood, machine.DriverSilent, machine.DeviceFailed, machine.PolicyRefused, machine.PolicyDown}

// stateWaiting is the state, as in ration ps, of commands and users that wait for room.
const stateWaiting = "waiting"

func (e emitter) states(m *machine.Machine) {
	states := map[string]int{machine.Starting: 0, machine.Running: 0, machine.Idle: 0, machine.Asleep: 0, machine.Ended: m.Hidden, stateWaiting: 0}
	for i := range m.Jobs {
		state := m.Jobs[i].State
		if m.Jobs[i].Sleep == machine.Asleep && state != machine.Ended {
			state = machine.Asleep
		}
		if _, known := states[state]; known {
			states[state]++
		}
	}
	for i := range m.Waiting {
		if !m.Waiting[i].Wakes { // otherwise it is a job
			states[stateWaiting]++
		}
	}
	for state, n := range states {
		e.gauge(jobsByState, float64(n), state)
	}
	refused := map[string]uint64{}
	for _, d := range m.Denied {
		refused[d.User] = d.Count // the oldest are first
	}
	for user, n := range refused {
		e.counter(policyRefused, float64(n), label(user))
	}
	found := map[string]int{}
	for _, kind := range kinds {
		found[kind] = 0
	}
	for _, f := range m.Findings {
		found[f.Kind]++
	}
	for kind, n := range found {
		e.gauge(findings, float64(n), kindLabel(kind))
	}
}

// kindLabel returns a kind of finding as a label value.
func kindLabel(kind string) string { return strings.ReplaceAll(kind, "-", "_") }

func (e emitter) job(s *series) {
	e.gauge(jobProcesses, float64(s.processes), s.user, s.name)
	if !s.others {
		e.counter(jobDeaths, float64(s.deaths), s.user, s.name)
		e.gauge(jobGaveUp, s.gaveUp, s.user, s.name)
		e.gauge(jobStarted, s.createdSeconds(), s.user, s.name)
		if !s.idle.IsZero() {
			e.gauge(jobIdle, float64(s.idle.UnixNano())/1e9, s.user, s.name)
		}
		for state, n := range s.sleep {
			e.gauge(jobSleep, float64(n), s.user, s.name, state)
		}
		if !s.wakeWait.IsZero() {
			e.gauge(jobWakeWait, float64(s.wakeWait.UnixNano())/1e9, s.user, s.name)
		}
		if k := s.kubernetes; k != nil {
			e.gauge(jobPod, 1, s.user, s.name, label(k.Namespace), label(k.Claim), podLabel(k))
		}
	}
	for device, d := range s.devices {
		labels := []string{s.user, s.name, strconv.Itoa(device)}
		e.gauge(jobUsed, float64(d.used), labels...)
		if d.limited {
			e.gauge(jobLimit, float64(d.limit), labels...)
		}
		if d.aside > 0 {
			e.gauge(jobAside, float64(d.aside), labels...)
		}
		if s.others { // skip counters and peaks: the sum over a changing set of jobs is not a counter, and peaks cannot be added
			continue
		}
		e.gauge(jobPeak, float64(d.peak), labels...)
		e.counter(jobRefusals, float64(d.refused), labels...)
		if d.share > 0 {
			e.gauge(jobShare, float64(d.share)/100, labels...)
		}
		if d.cap > 0 {
			e.gauge(jobCap, float64(d.cap)/100, labels...)
			e.counter(jobComputeUsed, float64(d.computeUsed)/1e9, labels...)
			e.counter(jobComputeWaited, float64(d.computeWaited)/1e9, labels...)
		}
	}
}
