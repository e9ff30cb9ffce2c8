package machine

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/termtext"
)

const (
	driverInterval = 5 * time.Second  // how often driverPoll queries the driver
	driverRetry    = 30 * time.Second // how often driverPoll tries to load a driver if there is none
	driverMaxAge   = 15 * time.Second // how long an answer stays valid
)

// driverAnswer is one answer of the driver.
type driverAnswer struct {
	devices   []gpu.Device
	status    map[int]gpu.Status // of the devices that report one
	failed    map[int]error      // of the other devices: why
	processes []gpu.Process
	asked     uint64 // before the driver was asked for processes: in ticks since boot, as proc.Started
	err       error  // why there is no list of processes
}

// driver is the part of gpu.Driver that this package uses.
type driver interface {
	Describe() []gpu.Device
	Status(device int) (gpu.Status, error)
	Processes() ([]gpu.Process, error)
}

// askDriver queries a driver. It returns nil if there is none. Only one goroutine at a time starts
// NVML.
func askDriver(session *gpu.Session) *driverAnswer {
	nvml.Lock()
	defer nvml.Unlock()
	d, err := session.Driver()
	if err != nil {
		return nil
	}
	a := answerOf(d)
	if a.err != nil {
		session.Failed()
	}
	return a
}

var nvml sync.Mutex

func answerOf(d driver) *driverAnswer {
	a := &driverAnswer{devices: d.Describe(), status: map[int]gpu.Status{}, failed: map[int]error{}}
	for _, device := range a.devices {
		if s, err := d.Status(device.Index); err == nil {
			a.status[device.Index] = s
		} else {
			a.failed[device.Index] = err
		}
	}
	a.asked = proc.Now()
	a.processes, a.err = d.Processes()
	if len(a.failed) < len(a.devices) && len(a.failed) > 0 {
		a.err = nil // the finding of the device says it, and the list has the processes of the others
	}
	return a
}

// driverPoll queries the driver every few seconds. It has a goroutine of its own, because the
// driver may not respond.
type driverPoll struct {
	stop chan struct{}

	mu   sync.Mutex
	last *driverAnswer // guarded by mu; nil before the first answer
	news bool          // guarded by mu: isNew has not reported this answer yet
	at   time.Time     // guarded by mu
}

// pollDriver starts a driverPoll that calls wake after each answer.
func pollDriver(wake func()) *driverPoll {
	p := &driverPoll{stop: make(chan struct{})}
	go p.run(wake)
	return p
}

// run keeps the driver open. It opens the driver again if it stops responding, for example after a
// reload.
func (p *driverPoll) run(wake func()) {
	var session gpu.Session
	defer session.Close()
	for {
		wait := driverRetry
		if a := askDriver(&session); a != nil {
			p.mu.Lock()
			p.last, p.news, p.at = a, true, time.Now()
			p.mu.Unlock()
			wake()
			wait = driverInterval
		}
		select {
		case <-p.stop:
			return
		case <-time.After(wait):
		}
	}
}

// isNew reports whether there is a new answer since the last call, or the last answer has become
// too old.
func (p *driverPoll) isNew() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.news
	p.news = false
	if p.last != nil && time.Since(p.at) > driverMaxAge {
		p.last, news = nil, true
	}
	return news
}

func (p *driverPoll) answer() *driverAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

func (p *driverPoll) close() {
	if p != nil {
		close(p.stop)
	}
}

// addDriver adds the driver's latest answer.
func (s *scanner) addDriver(m *Machine) {
	var a *driverAnswer
	switch {
	case s.driver != nil:
		a = s.driver.answer()
	case s.opts.Driver != nil:
		a = askDriver(s.opts.Driver)
	}
	if a == nil {
		return
	}
	m.addDriver(a, s.lockers)
	m.nameUnread()
	if s.opts.Only != "" {
		m.Outside = []Outside{} // they may belong to jobs that were not read
		m.Findings = slices.DeleteFunc(m.Findings, func(f Finding) bool { return f.Kind == OutsideJobs })
	}
}

// lockers has the files that processes had locked at a time, by PID.
type lockers struct {
	at    time.Time
	files map[int][]job.FileID
}

// addDriver adds the devices, the driver's count for each process of a job, and the processes that
// belong to no job.
func (m *Machine) addDriver(a *driverAnswer, locked lockers) {
	for _, d := range a.devices {
		s := a.status[d.Index]
		m.Devices = append(m.Devices, GPU{Device: d.Index, UUID: termtext.Printable(d.UUID), Name: termtext.Printable(d.Name), MIG: d.MIG, Total: uint64(d.Total),
			Failed: a.failed[d.Index] != nil,
			Used:   s.Used, Temperature: s.Temperature, Power: s.Power, Utilization: s.Utilization})
		if err := a.failed[d.Index]; err != nil {
			m.Findings = append(m.Findings, Finding{Kind: DeviceFailed, Device: d.Index,
				Text: fmt.Sprintf("GPU %d does not answer: %s", d.Index, termtext.Printable(strings.TrimSuffix(err.Error(), " (try nvidia-smi)"))), Remedy: "nvidia-smi and the kernel's log (dmesg, Xid) say why"})
		}
	}
	defer m.AddRations() // after what the driver counts for jobs that sleep
	if a.err != nil {
		m.Findings = append(m.Findings, Finding{Kind: DriverSilent, Device: -1,
			Text: "the driver does not say which processes hold memory: " + termtext.Printable(a.err.Error()), Remedy: "try nvidia-smi"})
		return
	}
	if !seesListed(a.processes) {
		m.addAmounts(a.processes, job.AllUsers())
		return
	}
	m.addProcesses(a, locked)
}

// DeviceOf returns the index in m.Devices of a job's device, or -1. It compares UUIDs or, until a
// process of the job has found out the UUID, numbers. A GPU that has failed may not even say its UUID: then its
// number decides, if no other GPU has the UUID.
func (m *Machine) DeviceOf(d *Device) int {
	if d.UUID != "" {
		if at := slices.IndexFunc(m.Devices, func(g GPU) bool { return g.UUID == d.UUID }); at >= 0 {
			return at
		}
	}
	return slices.IndexFunc(m.Devices, func(g GPU) bool { return g.Device == d.Device && (d.UUID == "" || g.Failed && g.UUID == "") })
}

// AddRations adds the limits of all jobs to each device's Rations, Jobs and Unlimited, except for those that sleep and those
// beside the policy in force. The devices of a machine that was read have them.
func (m *Machine) AddRations() { m.addRations(m.Devices, func(*Job) bool { return true }) }

// addRations adds the limits of the jobs that count to devices, which are those of m.Devices or copies of them.
func (m *Machine) addRations(devices []GPU, counts func(*Job) bool) {
	beside := BesidePolicy()
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == Ended || j.LeavesRoom() || beside(j) || !counts(j) {
			continue
		}
		for n := range j.Devices {
			d := &j.Devices[n]
			at := m.DeviceOf(d)
			switch {
			case at < 0, d.Limited && d.Limit == 0: // it may not use this device, and has nothing of it
			case d.Limited:
				devices[at].Rations += min(d.Limit, ^devices[at].Rations) // saturates: a job may claim any limit
				devices[at].Jobs++
			case d.Used > 0:
				devices[at].Unlimited++
			}
		}
	}
}

// use identifies what one process uses of one device, by the numbers of the machine.
type use struct{ device, pid int }

// addProcesses adds what the driver counts for jobs and their processes, and the processes of no job.
// A process that has a region locked is in that job, even if the region, which the process can write, does
// not list it. A process with locks of several jobs is in each of them: otherwise it could choose the job that
// is compared.
func (m *Machine) addProcesses(a *driverAnswer, locked lockers) {
	ours, held := map[use]*Holding{}, holders{}
	jobsOf := m.jobsOf(locked)
	for i := range m.Jobs {
		m.addHoldings(&m.Jobs[i], ours)
	}
	for _, r := range a.processes {
		h := ours[use{r.Device, r.PID}]
		if h != nil {
			h.Driver, h.DriverNow = r.Used, true
		}
		for _, j := range jobsOf[r.PID] {
			held.add(j, m.addReported(j, r, h == nil), holder{Process: r})
		}
		if len(jobsOf[r.PID]) > 0 {
			continue
		}
		out := Outside{Device: r.Device, PID: r.PID, UID: -1, Used: r.Used}
		if uid, name, _, err := proc.Owner(r.PID); err == nil {
			out.UID, out.User, out.Name = uid, proc.UserName(uid), termtext.Printable(name)
			out.Cgroup, out.Container = proc.Cgroup(r.PID)
			if started, err := proc.Started(r.PID); err == nil && started < a.asked { // not a later process with its PID
				out.Local = ProcessID{r.PID, started}
			}
		}
		// An ordinary user's scan does not see other users' jobs, so this process may belong to one
		// of them.
		if !job.AllUsers() && out.UID != os.Geteuid() {
			continue
		}
		out.Exempt = exempt(out.UID)
		m.Outside = append(m.Outside, out)
		if j, n := m.addEscaped(out); j != nil {
			held.add(j, n, holder{r, true})
		}
	}
	for j, of := range held {
		m.addUnnamed(j, of)
	}
	m.addEscapes(held, a.asked)
	m.splitElsewhere(held) // last: held has pointers to the jobs
}

// jobsOf returns the jobs of processes, by PID, by the kernel's word.
func (m *Machine) jobsOf(locked lockers) map[int][]*Job {
	out, byFile := map[int][]*Job{}, map[job.FileID]*Job{}
	add := func(pid int, j *Job) {
		if !slices.Contains(out[pid], j) {
			out[pid] = append(out[pid], j)
		}
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.file != (job.FileID{}) {
			byFile[j.file] = j
		}
		for _, pid := range j.driverPIDs() { // a mere claim must not take another process off the list
			add(pid, j)
		}
	}
	for pid, files := range locked.files {
		for _, file := range files {
			// A job that was made later has the file's number after another job, and the process was that one's.
			if j := byFile[file]; j != nil && !j.Created.After(locked.at) {
				add(pid, j)
			}
		}
	}
	return out
}

// addHoldings adds what a job's processes say they hold to ours.
func (m *Machine) addHoldings(j *Job, ours map[use]*Holding) {
	number := map[int]int{} // the machine's number of a job's device
	for n := range j.Devices {
		if at := m.DeviceOf(&j.Devices[n]); at >= 0 {
			number[j.Devices[n].Device] = m.Devices[at].Device
		}
	}
	for _, p := range j.Processes {
		pid := p.driverPID()
		if pid == 0 {
			continue
		}
		for n := range p.Holdings {
			device, known := number[p.Holdings[n].Device]
			// A claim must not take from another process what the driver counts for it.
			if of := (use{device, pid}); known && (p.Verified || ours[of] == nil) {
				ours[of] = &p.Holdings[n]
			}
		}
	}
}

// addReported adds what the driver counts for a process of a job to the job. If the process's own account
// has nothing of that device, it gets a holding, so that the difference is seen. It returns the index of the
// device in j.Devices, or unnamed.
func (m *Machine) addReported(j *Job, r gpu.Process, unaccounted bool) (n int) {
	device := r.Device
	if n = m.deviceIn(j, r.Device); n != unnamed {
		j.Devices[n].Driver += min(r.Used, ^j.Devices[n].Driver)
		device = j.Devices[n].Device
	}
	if i := slices.IndexFunc(j.Processes, func(p Process) bool { return p.Verified && p.driverPID() == r.PID }); unaccounted && i >= 0 {
		j.Processes[i].Holdings = append(j.Processes[i].Holdings, Holding{Device: device, Driver: r.Used, DriverNow: true})
	}
	return n
}

// addEscaped adds what a process of no job holds to its user's job under a policy: all processes of the user
// belong in that job. It returns the job, or nil, and the index of the device in its Devices, or unnamed.
func (m *Machine) addEscaped(o Outside) (j *Job, n int) {
	if o.UID < 0 {
		return nil, unnamed
	}
	path := job.OfUserPath(o.UID)
	for i := range m.Jobs {
		if j = &m.Jobs[i]; j.Path != path {
			continue
		}
		if n = m.deviceIn(j, o.Device); n != unnamed {
			d := &j.Devices[n]
			d.Driver += min(o.Used, ^d.Driver)
			d.Escaped += min(o.Used, ^d.Escaped)
		}
		return j, n
	}
	return nil, unnamed
}

// addUnnamed adds what the driver counts for a job on devices of the machine that the job does not name. Which
// device of the job that is can only be guessed: the job's processes write the UUIDs, and the limits are
// the operator's. A process that keeps to the rules writes the UUID of a device before it uses it, so this one
// does not, and is compared with the lowest limit.
func (m *Machine) addUnnamed(j *Job, of map[int][]holder) {
	at := unnamed
	for n := range j.Devices {
		if d := &j.Devices[n]; d.Limited && (at == unnamed || d.Limit < j.Devices[at].Limit) {
			at = n
		}
	}
	if at == unnamed {
		return // it has no limit
	}
	for _, h := range of[unnamed] {
		if m.isMIG(h.Device) { // the driver counts by the whole device, and the job names an instance of it
			continue
		}
		d := &j.Devices[at]
		to := &d.Driver
		if h.outside && m.DeviceOf(d) >= 0 { // as one that a policy hides: it is another device than the job's
			to = &d.EscapedElsewhere
		}
		*to += min(h.Used, ^*to)
		of[at] = append(of[at], h)
	}
}

func (m *Machine) isMIG(device int) bool {
	return slices.ContainsFunc(m.Devices, func(g GPU) bool { return g.Device == device && g.MIG })
}

// deviceIn returns the index in a job's devices of a device of the machine, or unnamed; of several that claim
// to be that device the one with the lowest limit.
func (m *Machine) deviceIn(j *Job, device int) int {
	found := unnamed
	for n := range j.Devices {
		d := &j.Devices[n]
		at := m.DeviceOf(d)
		if at < 0 || m.Devices[at].Device != device {
			continue
		}
		if found == unnamed || d.Limited && (!j.Devices[found].Limited || d.Limit < j.Devices[found].Limit) {
			found = n
		}
	}
	return found
}
