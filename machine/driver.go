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
	driverInterval = 5 * time.Second  // how often driverPoll asks the driver
	driverRetry    = 30 * time.Second // how often it looks for a driver where there is none
	driverPatience = 15 * time.Second // how long an answer is shown
)

// driverAnswer is what the driver said at one time.
type driverAnswer struct {
	devices   []gpu.Device
	status    map[int]gpu.Status // of the devices that have one
	processes []gpu.Process
	err       error // why there is no list of processes
}

// driver is what is asked of a gpu.Driver.
type driver interface {
	Describe() []gpu.Device
	Status(device int) (gpu.Status, error)
	Processes() ([]gpu.Process, error)
}

// askDriver asks a driver, and returns nil where there is none. NVML is started by one goroutine at a time.
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

// driverPoll asks the driver every few seconds in a goroutine of its own, as the driver may not answer.
type driverPoll struct {
	stop chan struct{}

	mu   sync.Mutex
	last *driverAnswer // under mu; nil while there is none
	news bool          // under mu: isNew has not returned it yet
	at   time.Time     // under mu
}

// pollDriver starts one that calls wake after each answer.
func pollDriver(wake func()) *driverPoll {
	p := &driverPoll{stop: make(chan struct{})}
	go p.run(wake)
	return p
}

// run keeps the driver open. A driver that does not answer, as after it was loaded again, is opened anew.
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

// isNew reports whether there is an answer that it was not asked about yet, or the last one is too old.
func (p *driverPoll) isNew() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.news
	p.news = false
	if p.last != nil && time.Since(p.at) > driverPatience {
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

// addDriver adds what the driver says.
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
		m.Outside = []Outside{} // they may be in the other jobs
	}
}

// addDriver adds the devices, what the driver counts for each process of a job, and the processes that
// are in no job.
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

// DeviceOf returns the index in m.Devices of a job's device, or -1: by its UUID or, while no process of the
// job has found that out, by its number.
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
				m.Devices[at].Rations += min(d.Limit, ^m.Devices[at].Rations) // a job may claim any limit
				m.Devices[at].Jobs++
			case d.Used > 0:
				m.Devices[at].Unlimited++
			}
		}
	}
}

// addProcesses adds what the driver counts for processes of jobs, and the processes of no job.
func (m *Machine) addProcesses(reported []gpu.Process) {
	type use struct{ device, pid int }
	ours := map[use]*Holding{}
	inJob := map[int]bool{} // PIDs of processes that are in a job, by the kernel's word
	for i := range m.Jobs {
		j := &m.Jobs[i]
		number := map[int]int{} // the machine's number of a job's device
		for n := range j.Devices {
			if at := m.DeviceOf(&j.Devices[n]); at >= 0 {
				number[j.Devices[n].Device] = m.Devices[at].Device
			}
		}
		for _, pid := range j.hostPIDs() { // a mere claim must not take another process off the list
			inJob[pid] = true
		}
		for _, p := range j.Processes {
			if p.HostPID == 0 {
				continue
			}
			for n := range p.Holdings {
				device, known := number[p.Holdings[n].Device]
				// Nor must a claim take from another process what the driver counts for it.
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
		// An ordinary user's scan has no other users' jobs, so their processes may be in one.
		if !job.AllUsers() && out.UID != os.Geteuid() {
			continue
		}
		m.Outside = append(m.Outside, out)
	}
}
