package node

import (
	"slices"
	"time"

	"ration/internal/gpu"
	"ration/machine"
)

// minSamples is the time over which the driver's samples are averaged at least, and window how far back an
// average goes. An average over less than five seconds says little, and a longer one may still be wrong by
// several points: it is marked (Time.About).
const (
	minSamples = 5 * time.Second
	window     = 2 * minSamples
)

// sampler is what a meter needs of a driver.
type sampler interface {
	Samples(device int, since uint64) ([]gpu.Sample, error)
}

// meter measures how much of a device's time each process had lately. Where a job has a cap, the library
// measures that time, and its rate is exact. Otherwise it takes the driver's samples.
type meter struct {
	since map[int]uint64 // by device: the driver's time of the newest sample
	looks []look         // at the driver's samples, the oldest first
	used  map[account][]reading
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
	joined       time.Time
}

// reading is what had been measured of an account at a time.
type reading struct {
	at   time.Time
	used uint64 // nanoseconds
}

// add asks for new samples, and adds to each holding what its process had of the device's time, where that
// is known by now. driver is nil where there is none, and devices are the driver's.
func (m *meter) add(driver sampler, devices []gpu.Device, jobs []machine.Job, now time.Time) {
	if driver != nil {
		m.sample(driver, devices, now)
	}
	used := map[account][]reading{} // without those that are gone
	for i := range jobs {
		for _, p := range jobs[i].Processes {
			for n := range p.Holdings {
				h := &p.Holdings[n]
				if h.Compute == nil || h.Compute.Used == 0 {
					h.Time = m.about(onDevice{deviceOf(devices, &jobs[i], h.Device), p.HostPID})
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

// deviceOf returns the machine's number of a job's device, which may have another number in the job
// (CUDA_VISIBLE_DEVICES), or -1. Until a process has found out its UUID, the numbers are taken as equal.
func deviceOf(devices []gpu.Device, j *machine.Job, device int) int {
	for _, d := range j.Devices {
		if d.Device == device && d.UUID != "" {
			return slices.IndexFunc(devices, func(g gpu.Device) bool { return g.UUID == d.UUID })
		}
	}
	return device
}

// sample asks the driver for its new samples.
func (m *meter) sample(driver sampler, devices []gpu.Device, now time.Time) {
	l := look{now, map[onDevice]float64{}, map[int]bool{}}
	count := map[onDevice]float64{}
	if m.since == nil {
		m.since = map[int]uint64{}
	}
	for device := range devices {
		samples, err := driver.Samples(device, m.since[device])
		if err != nil {
			l.missing[device] = true
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

// recent drops what is older than the window, except the newest of these.
func recent[T any](all []T, now time.Time, at func(T) time.Time) []T {
	for len(all) > 1 && now.Sub(at(all[1])) >= window {
		all = all[1:]
	}
	return all
}

// about returns the average of the driver's samples of a process, or nil while they are too few. The first
// look does not count: the time that its samples cover is not known.
func (m *meter) about(key onDevice) *machine.Time {
	if len(m.looks) == 0 || key.pid == 0 || key.device < 0 {
		return nil
	}
	span := m.looks[len(m.looks)-1].at.Sub(m.looks[0].at)
	if span < minSamples {
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

// rate returns what was measured between the first reading and the last one.
func rate(all []reading) *machine.Time {
	first, last := all[0], all[len(all)-1]
	span := last.at.Sub(first.at)
	if span <= 0 || last.used < first.used {
		return nil
	}
	return &machine.Time{Percent: 100 * float64(last.used-first.used) / float64(span), Seconds: span.Seconds()}
}
