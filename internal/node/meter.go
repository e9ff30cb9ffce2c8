package node

import (
	"slices"
	"time"

	"ration/internal/gpu"
	"ration/machine"
)

// An average of the driver's samples covers at least minSamples, because a shorter one says little,
// and at most window. Even then it may be wrong by several percentage points, so it is marked
// (Time.About).
const (
	minSamples = 5 * time.Second
	window     = 2 * minSamples
	// sampleError is by how many percentage points an average of samples may be wrong.
	sampleError = 10
)

// sampler is the part of a driver that a meter uses.
type sampler interface {
	Samples(device int, since uint64) ([]gpu.Sample, error)
}

// meter measures how much of a device's time each process had lately. While a job has a cap, the
// library measures that time exactly. For other jobs the meter uses the driver's samples.
type meter struct {
	since map[int]uint64 // by device: timestamp of the newest sample, on the driver's clock
	looks []look         // samples of the driver, oldest first
	used  map[account][]reading
}

// onDevice is a process, by its host PID, and a device.
type onDevice struct{ device, pid int }

// look holds the driver's samples since the previous look.
type look struct {
	at      time.Time
	percent map[onDevice]float64 // a missing process had no time
	missing map[int]bool         // devices whose samples could not be read
}

// account identifies the account of a process for one device.
type account struct {
	path         string
	slot, device int
	joined       time.Time
}

// reading is the measured total of an account at one time.
type reading struct {
	at   time.Time
	used uint64 // nanoseconds
}

// add reads new samples and sets Holding.Time of each process whose rate is known by now. driver is
// nil if there is no driver. devices are the driver's devices.
func (m *meter) add(driver sampler, devices []gpu.Device, jobs []machine.Job, now time.Time) {
	if driver != nil {
		m.sample(driver, devices, now)
	}
	used := map[account][]reading{} // only accounts that still exist
	for i := range jobs {
		for _, p := range jobs[i].Processes {
			for n := range p.Holdings {
				h := &p.Holdings[n]
				about := m.about(onDevice{deviceOf(devices, &jobs[i], h.Device), p.HostPID})
				if h.Compute == nil || h.Compute.Used == 0 && !h.Compute.Held || !jobs[i].Measured(h.Device) {
					h.Time = about
					continue
				}
				key := account{jobs[i].Path, p.Slot, h.Device, p.Joined}
				used[key] = recent(append(m.used[key], reading{now, h.Compute.Used}), now, func(r reading) time.Time { return r.at })
				// A long kernel is measured when it has ended, but the driver sees it now. And the job's processes
				// write what was measured: if the driver sees far more than that, it is not believed.
				if h.Time = rate(used[key]); h.Time != nil && about != nil && (h.Time.Percent == 0 || about.Percent > 2*h.Time.Percent+sampleError) {
					h.Time = about
				}
			}
		}
	}
	m.used = used
}

// deviceOf returns the machine's number of a job's device, or -1. A job may number devices
// differently (CUDA_VISIBLE_DEVICES). Until a process has found out the device's UUID, the two
// numbers are assumed to be equal.
func deviceOf(devices []gpu.Device, j *machine.Job, device int) int {
	for _, d := range j.Devices {
		if d.Device == device && d.UUID != "" {
			return slices.IndexFunc(devices, func(g gpu.Device) bool { return g.UUID == d.UUID })
		}
	}
	return device
}

// sample reads the driver's new samples.
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

// recent drops elements that are older than the window, except the newest of them.
func recent[T any](all []T, now time.Time, at func(T) time.Time) []T {
	for len(all) > 1 && now.Sub(at(all[1])) >= window {
		all = all[1:]
	}
	return all
}

// about returns the average of the driver's samples of a process, or nil if there are too few. It
// ignores the first look, because the time that its samples cover is unknown.
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

// rate returns the rate between the first and the last reading.
func rate(all []reading) *machine.Time {
	first, last := all[0], all[len(all)-1]
	span := last.at.Sub(first.at)
	if span <= 0 || last.used < first.used {
		return nil
	}
	return &machine.Time{Percent: 100 * float64(last.used-first.used) / float64(span), Seconds: span.Seconds()}
}
