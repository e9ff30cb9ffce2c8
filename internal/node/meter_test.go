package node

import (
	"errors"
	"math"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/machine"
)

// standIn is a meter with the driver that it asks.
type standIn struct {
	meter
	driver  sampler
	devices []gpu.Device
}

func (m *standIn) Add(jobs []machine.Job, now time.Time) { m.add(m.driver, m.devices, jobs, now) }

func devices(uuids ...string) (out []gpu.Device) {
	for _, uuid := range uuids {
		out = append(out, gpu.Device{UUID: uuid})
	}
	return out
}

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// fake is a driver that has sampled process 7 and, on device 1, process 8.
type fake struct {
	percent float64
	clock   uint64
	err     error
	asked   []uint64 // since, of device 0
}

func (f *fake) Samples(device int, since uint64) ([]gpu.Sample, error) {
	if device == 0 {
		f.asked = append(f.asked, since)
		f.clock++
	}
	if f.err != nil || f.percent == 0 {
		return nil, f.err
	}
	return []gpu.Sample{{PID: 7 + device, Percent: f.percent - 10, Time: f.clock}, {PID: 7 + device, Percent: f.percent + 10, Time: f.clock}}, nil
}

// jobs returns a job with a process that has a cap and another that has none.
func jobs(used uint64) []machine.Job {
	capped := machine.Process{Slot: 1, PID: 1, HostPID: 70, Joined: noon, Holdings: []machine.Holding{{Compute: &machine.ProcessCompute{Used: used}}}}
	free := machine.Process{Slot: 2, PID: 2, HostPID: 7, Holdings: []machine.Holding{{}, {Device: 1}}}
	return []machine.Job{{Path: "/a", Devices: []machine.Device{{Compute: &machine.Compute{Max: 50}}}, Processes: []machine.Process{capped, free}}}
}

func at(m *standIn, seconds float64, used uint64) (capped, free, other *machine.Time) {
	all := jobs(used)
	m.Add(all, noon.Add(time.Duration(seconds*float64(time.Second))))
	p := all[0].Processes
	return p[0].Holdings[0].Time, p[1].Holdings[0].Time, p[1].Holdings[1].Time
}

func same(got *machine.Time, want machine.Time) bool {
	return got != nil && got.About == want.About && math.Abs(got.Percent-want.Percent) < 1e-9 && math.Abs(got.Seconds-want.Seconds) < 1e-9
}

func TestMeter(t *testing.T) {
	f := &fake{percent: 90}
	m := &standIn{driver: f, devices: devices("GPU-a", "GPU-b")}
	// Measured: exact from the second look on. Sampled: not before five seconds.
	capped, free, _ := at(m, 0, 1e9)
	expect.True(t, capped == nil && free == nil, "at once", capped, free)
	f.percent = 40
	capped, free, _ = at(m, 2, 2e9)
	expect.True(t, same(capped, machine.Time{Percent: 50, Seconds: 2}) && free == nil, "after 2 s", capped, free)
	_, free, _ = at(m, 4.9, 2e9)
	expect.True(t, free == nil, "after 4.9 s", free)
	// Nothing was sampled: it was idle. What the first look said is of another time.
	f.percent = 0
	_, free, other := at(m, 9.8, 2e9)
	expect.True(t, same(free, machine.Time{Percent: 20, Seconds: 9.8, About: true}) && same(other, machine.Time{Seconds: 9.8, About: true}),
		"after 9.8 s", free, other)
	// What is older than ten seconds is forgotten; one look before that is kept, to count from.
	f.percent = 60
	if capped, free, _ := at(m, 14.8, 3e9); !same(free, machine.Time{Percent: (40*2.9 + 60*5) / 12.8, Seconds: 12.8, About: true}) || !same(capped, machine.Time{Percent: 100 / 12.8, Seconds: 12.8}) {
		t.Errorf("after 14.8 s: %+v, %+v", capped, free)
	}
	want := []uint64{0, 1, 2, 3, 3}
	expect.True(t, len(f.asked) == len(want) && f.asked[4] == want[4] && f.asked[1] == want[1], "asked for samples since", f.asked, want)
}

func TestMeterWithoutSamples(t *testing.T) {
	for name, m := range map[string]*standIn{"no driver": {}, "an error": {driver: &fake{err: errors.New("lost")}, devices: devices("GPU-a")}} {
		for i := range 10 {
			_, free, _ := at(m, float64(i), 1)
			expect.True(t, free == nil, name, free)
		}
	}
	// Another process in the slot has used less.
	m := &standIn{}
	at(m, 0, 9e9)
	capped, _, _ := at(m, 1, 1e9)
	expect.True(t, capped == nil, capped, "for time that went back")
}

// A job may have other numbers for its devices than the machine.
func TestMeterFindsDevice(t *testing.T) {
	m := &standIn{driver: &fake{percent: 40}, devices: devices("GPU-a", "GPU-b")}
	for uuid, want := range map[string]*machine.Time{"GPU-b": {Percent: 40, Seconds: 6, About: true}, "GPU-c": nil, "": {Seconds: 6, About: true}} {
		m.looks = nil
		job := machine.Job{Devices: []machine.Device{{UUID: uuid}}, Processes: []machine.Process{{HostPID: 8, Holdings: []machine.Holding{{}}}}}
		for _, seconds := range []time.Duration{0, 6} {
			m.Add([]machine.Job{job}, noon.Add(seconds*time.Second))
		}
		got := job.Processes[0].Holdings[0].Time
		expect.True(t, (got == nil) == (want == nil) && (got == nil || same(got, *want)), uuid, got, want)
	}
}

// A process whose job's cap was taken off is not measured any more, and a kernel that still runs is not measured yet:
// then the driver's samples count.
func TestMeterWhileNothingIsMeasured(t *testing.T) {
	for name, maximum := range map[string]int{"no cap any more": 0, "a long kernel": 50} {
		t.Run(name, func(t *testing.T) {
			m := &standIn{driver: &fake{percent: 40}, devices: devices("GPU-0")}
			for second := range 7 {
				all := jobs(5e9)
				all[0].Devices[0].Compute.Max, all[0].Processes[0].HostPID = maximum, 7
				m.Add(all, noon.Add(time.Duration(second)*time.Second))
				if got := all[0].Processes[0].Holdings[0].Time; second == 6 {
					expect.True(t, got != nil && got.About && math.Abs(got.Percent-40) < 1e-9, got)
				}
			}
		})
	}
}

// Of a process that has launched nothing since it started with a cap, that is known where the driver's samples say nothing of
// it: in a PID namespace. Of one that started without, it is not.
func TestMeterBeforeFirstLaunch(t *testing.T) {
	for held, known := range map[bool]bool{true: true, false: false} {
		m := &standIn{driver: &fake{}, devices: devices("GPU-0")}
		var got *machine.Time
		for second := range 7 {
			all := jobs(0)
			all[0].Processes[0].HostPID, all[0].Processes[0].Holdings[0].Compute.Held = 0, held
			m.Add(all, noon.Add(time.Duration(second)*time.Second))
			got = all[0].Processes[0].Holdings[0].Time
		}
		expect.True(t, (got != nil) == known && (got == nil || got.Percent == 0 && !got.About), held, got)
	}
}

// The job's processes write what was measured. If the driver sees far more than that, its samples count; a few
// percentage points are only their error.
func TestHostileMeasured(t *testing.T) {
	for name, tt := range map[string]struct {
		second uint64 // measured nanoseconds in each second
		about  bool
	}{
		"honest":           {400_000_000, false},
		"within the error": {200_000_000, false},
		"a twentieth":      {20_000_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &standIn{driver: &fake{percent: 40}, devices: devices("GPU-0")}
			var got *machine.Time
			for second := range 7 {
				all := jobs(5e9 + uint64(second)*tt.second)
				all[0].Processes[0].HostPID = 7
				m.Add(all, noon.Add(time.Duration(second)*time.Second))
				got = all[0].Processes[0].Holdings[0].Time
			}
			expect.True(t, got != nil && got.About == tt.about, got)
		})
	}
}
