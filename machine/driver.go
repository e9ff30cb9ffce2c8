package machine

import (
	"os"
	"slices"
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
	processes []gpu.Process
	err       error // why there is no list of processes
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
	a := &driverAnswer{devices: d.Describe(), status: map[int]gpu.Status{}}
	for _, device := range a.devices {
		if s, err := d.Status(device.Index); err == nil {
			a.status[device.Index] = s
		}
	}
	a.processes, a.err = d.Processes()
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
	m.addDriver(a)
	if s.opts.Only != "" {
		m.Outside = []Outside{} // they may belong to jobs that were not read
	}
}

// addDriver adds the devices, the driver's count for each process of a job, and the processes that
// belong to no job.
func (m *Machine) addDriver(a *driverAnswer) {
	for _, d := range a.devices {
		s := a.status[d.Index]
		m.Devices = append(m.Devices, GPU{Device: d.Index, UUID: termtext.Printable(d.UUID), Name: termtext.Printable(d.Name), MIG: d.MIG, Total: uint64(d.Total),
			Used: s.Used, Temperature: s.Temperature, Power: s.Power, Utilization: s.Utilization})
	}
	m.addRations()
	if a.err != nil {
		m.Findings = append(m.Findings, Finding{Kind: DriverSilent, Device: -1,
			Text: "the driver does not say which processes hold memory: " + termtext.Printable(a.err.Error()), Remedy: "try nvidia-smi"})
		return
	}
	m.addProcesses(a.processes)
}

// DeviceOf returns the index in m.Devices of a job's device, or -1. It compares UUIDs or, until a
// process of the job has found out the UUID, numbers.
func (m *Machine) DeviceOf(d *Device) int {
	return slices.IndexFunc(m.Devices, func(g GPU) bool {
		if d.UUID != "" {
			return g.UUID == d.UUID
		}
		return g.Device == d.Device
	})
}

// addRations adds up the limits of all jobs on each device.
func (m *Machine) addRations() {
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == Ended {
			continue
		}
		for n := range j.Devices {
			d := &j.Devices[n]
			at := m.DeviceOf(d)
			switch {
			case at < 0:
			case d.Limited:
				m.Devices[at].Rations += min(d.Limit, ^m.Devices[at].Rations) // saturates: a job may claim any limit
				m.Devices[at].Jobs++
			case d.Used > 0:
				m.Devices[at].Unlimited++
			}
		}
	}
}

// addProcesses adds the driver's counts for processes of jobs, and the processes that belong to no
// job.
func (m *Machine) addProcesses(reported []gpu.Process) {
	type use struct{ device, pid int }
	ours := map[use]*Holding{}
	inJob := map[int]bool{} // PIDs of processes that are in a job, confirmed by the kernel
	for i := range m.Jobs {
		j := &m.Jobs[i]
		number := map[int]int{} // maps the number of a device in the job to that on the machine
		for n := range j.Devices {
			if at := m.DeviceOf(&j.Devices[n]); at >= 0 {
				number[j.Devices[n].Device] = m.Devices[at].Device
			}
		}
		for _, pid := range j.hostPIDs() { // only confirmed PIDs: a claim must not remove another process from the list
			inJob[pid] = true
		}
		for _, p := range j.Processes {
			if p.HostPID == 0 {
				continue
			}
			for n := range p.Holdings {
				device, known := number[p.Holdings[n].Device]
				// A claim must not take the driver's count for another process either.
				if of := (use{device, p.HostPID}); known && (p.Verified || ours[of] == nil) {
					ours[of] = &p.Holdings[n]
				}
			}
		}
	}
	for _, r := range reported {
		if h := ours[use{r.Device, r.PID}]; h != nil {
			h.Driver, h.DriverNow = r.Used, true
		}
		if inJob[r.PID] {
			continue
		}
		out := Outside{Device: r.Device, PID: r.PID, UID: -1, Used: r.Used}
		if uid, name, _, err := proc.Owner(r.PID); err == nil {
			out.UID, out.User, out.Name = uid, proc.UserName(uid), termtext.Printable(name)
			out.Cgroup, out.Container = proc.Cgroup(r.PID)
		}
		// An ordinary user's scan does not see other users' jobs, so this process may belong to one
		// of them.
		if !job.AllUsers() && out.UID != os.Geteuid() {
			continue
		}
		m.Outside = append(m.Outside, out)
	}
}
