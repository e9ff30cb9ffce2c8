// Package utilization says how much of a device's time each process had lately, for
// commands that look at jobs again and again.
//
// Where a job has a cap, the library measures that time, and its rate is exact. Otherwise
// the driver's samples have to do. Their average over less than five seconds says little,
// and over more it may still be wrong by several points: it is marked as such.
package utilization

import (
	"slices"
	"time"

	"ration/internal/gpu"
	"ration/machine"
)

// Least is the time over which samples of the driver are averaged at least, and window how
// far an average goes back.
const (
	Least  = 5 * time.Second
	window = 2 * Least
)

// sampler is what a Meter needs of a driver.
type sampler interface {
	Samples(device int, since uint64) ([]gpu.Sample, error)
}

// Meter remembers earlier looks. It is not for use by several goroutines at once.
type Meter struct {
	driver  sampler        // nil without a driver
	devices []string       // UUIDs, by the machine's numbers
	since   map[int]uint64 // by device: the driver's time of the newest sample
	looks   []look         // of the driver's samples, the oldest first
	used    map[account][]reading
}

// New returns a meter for this machine. Without a driver it only knows what was measured.
func New() *Meter {
	m := &Meter{}
	if d, err := gpu.Open(""); err == nil {
		m.driver = d
		for _, device := range d.Devices {
			m.devices = append(m.devices, device.UUID)
		}
	}
	return m
}

// Close ends the use of the driver.
func (m *Meter) Close() {
	if d, ok := m.driver.(*gpu.Driver); ok {
		d.Close()
	}
}

// onDevice is a process, by its PID on the host, and a device.
type onDevice struct{ device, pid int }

// look is what the driver's samples said since the look before.
type look struct {
	at      time.Time
	percent map[onDevice]float64 // a process that is missing had nothing
	missing map[int]bool         // devices that could not be asked
}

// account is a process's account of one device.
type account struct {
	path         string
	slot, device int
	joined       int64
}

// reading is what had been measured of an account at a time.
type reading struct {
	at   time.Time
	used uint64 // nanoseconds
}

// Add looks at the devices, and adds to each holding what its process had of the device's
// time, where that is known by now.
func (m *Meter) Add(jobs []machine.Job, now time.Time) {
	m.sample(now)
	used := map[account][]reading{} // accounts that are gone are forgotten
	for i := range jobs {
		for _, p := range jobs[i].Processes {
			for n := range p.Holdings {
				h := &p.Holdings[n]
				if h.Compute == nil || h.Compute.Used == 0 {
					h.Time = m.about(onDevice{m.deviceOf(&jobs[i], h.Device), p.HostPID})
					continue
				}
				key := account{jobs[i].Path, p.Slot, h.Device, p.Joined}
				used[key] = recent(append(m.used[key], reading{now, h.Compute.Used}), now, func(r reading) time.Time { return r.at })
				h.Time = rate(used[key])
			}
		}
	}
	m.used = used
}

// deviceOf returns the machine's number of a job's device, which may have another number there
// (CUDA_VISIBLE_DEVICES), or -1. While no process has said which it is, they are the same.
func (m *Meter) deviceOf(j *machine.Job, device int) int {
	for _, d := range j.Devices {
		if d.Device == device && d.UUID != "" {
			return slices.Index(m.devices, d.UUID)
		}
	}
	return device
}

// sample asks the driver.
func (m *Meter) sample(now time.Time) {
	if m.driver == nil {
		return
	}
	l := look{now, map[onDevice]float64{}, map[int]bool{}}
	count := map[onDevice]float64{}
	if m.since == nil {
		m.since = map[int]uint64{}
	}
	for device := range m.devices {
		samples, err := m.driver.Samples(device, m.since[device])
		if err != nil {
			l.missing[device] = true // what is not known is not shown
			continue
		}
		for _, s := range samples {
			key := onDevice{device, s.PID}
			l.percent[key] += s.Percent
			count[key]++
			m.since[device] = max(m.since[device], s.Time)
		}
	}
	for key, n := range count {
		l.percent[key] /= n
	}
	m.looks = recent(append(m.looks, l), now, func(l look) time.Time { return l.at })
}

// recent drops what is older than the window, but for the newest of that.
func recent[T any](all []T, now time.Time, at func(T) time.Time) []T {
	for len(all) > 1 && now.Sub(at(all[1])) >= window {
		all = all[1:]
	}
	return all
}

// about returns the average of the driver's samples of a process, or nil while they are
// too few. The first look says nothing: it is not known which time it is of.
func (m *Meter) about(key onDevice) *machine.Time {
	if len(m.looks) == 0 || key.pid == 0 || key.device < 0 {
		return nil
	}
	span := m.looks[len(m.looks)-1].at.Sub(m.looks[0].at)
	if span < Least {
		return nil
	}
	sum := 0.0
	for i, l := range m.looks[1:] {
		if l.missing[key.device] {
			return nil
		}
		sum += l.percent[key] * float64(l.at.Sub(m.looks[i].at))
	}
	return &machine.Time{Percent: sum / float64(span), Seconds: span.Seconds(), About: true}
}

// rate returns what was measured between the first reading and the last.
func rate(all []reading) *machine.Time {
	first, last := all[0], all[len(all)-1]
	span := last.at.Sub(first.at)
	if span <= 0 || last.used < first.used {
		return nil
	}
	return &machine.Time{Percent: 100 * float64(last.used-first.used) / float64(span), Seconds: span.Seconds()}
}
