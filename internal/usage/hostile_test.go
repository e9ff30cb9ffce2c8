package usage

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

const uuid = "GPU-0"

// hostileMachine is a machine with one GPU of 80 GiB, a job of user eve with these devices, and one of user ada, who
// holds 2 GiB, and whose account must not change.
func hostileMachine(devices ...machine.Device) *machine.Machine {
	mc := machineWith(2*gib, 10*gib, 2*gib, "train")
	mc.Devices = []machine.GPU{{UUID: uuid, Total: 80 * gib}}
	mc.Jobs = append(mc.Jobs, machine.Job{Name: "evil", Path: "/evil", Created: monday.Add(time.Second), UID: 6666, Owner: "eve", State: machine.Running, Devices: devices})
	return mc
}

// eves returns the accounts of eve by device, after seconds in which the machine was the same.
func eves(t *testing.T, mc *machine.Machine, seconds int) map[string]Sums {
	t.Helper()
	m := NewMeter()
	for n := range seconds + 1 {
		m.Look(mc, monday.Add(time.Duration(n)*time.Second))
	}
	out := map[string]Sums{}
	for s, sums := range m.Take().Sums {
		if s.UID == 6666 {
			expect.Equal(t, s.Owner, "eve")
			out[s.Device] = sums
			continue
		}
		n := uint64(seconds)
		expect.Equal(t, s, train)
		expect.Equal(t, sums, Sums{Held: 2 * gib * n, Reserved: 10 * gib * n, Peak: 2 * gib}, "ada's account")
	}
	return out
}

// What a job writes about its memory is bounded by what the driver says, and where they differ the account says so.
func TestHostileMemory(t *testing.T) {
	same := make([]machine.Device, 16)
	phantoms := make([]machine.Device, 16)
	for i := range same {
		same[i] = machine.Device{Device: i, UUID: uuid, Used: 79 * gib, Peak: 79 * gib, Limited: true, Limit: 70 * gib, Total: 80 * gib}
		phantoms[i] = machine.Device{Device: i, UUID: "GPU-" + string(rune('a'+i)), Used: 1 << 40, Peak: 1, Limited: true, Limit: 2 << 40, Total: 2 << 40}
	}
	for name, tt := range map[string]struct {
		devices []machine.Device
		want    map[string]Sums // for one second
	}{
		"honest": {[]machine.Device{{UUID: uuid, Used: 10 * gib, Driver: 10*gib + drift}},
			map[string]Sums{uuid: {Held: 10*gib + drift, Peak: 10*gib + drift}}},
		"a little more than the driver says": {[]machine.Device{{UUID: uuid, Used: 10*gib + drift, Driver: 10 * gib}},
			map[string]Sums{uuid: {Held: 10*gib + drift, Peak: 10*gib + drift}}},
		"less than the driver says": {[]machine.Device{{UUID: uuid, Driver: 9 * gib}},
			map[string]Sums{uuid: {Held: 9 * gib, Peak: 9 * gib}}},
		"far more than the driver says": {[]machine.Device{{UUID: uuid, Used: 50 * gib, Driver: 10 * gib}},
			map[string]Sums{uuid: {Held: 50 * gib, Error: 40 * gib, Peak: 50 * gib}}},
		"more than there is, on a device that it calls huge": {[]machine.Device{{UUID: uuid, Used: 1 << 60, Driver: gib, Total: 1 << 62, Peak: 1 << 63}},
			map[string]Sums{uuid: {Held: 80 * gib, Error: 80 * gib, Peak: 80 * gib}}},
		"a limit of more than there is": {[]machine.Device{{UUID: uuid, Peak: 1, Limited: true, Limit: 2 << 40}},
			map[string]Sums{uuid: {Reserved: 80 * gib}}},
		"devices that are not there": {phantoms, map[string]Sums{}},
		"one device many times":      {same, map[string]Sums{uuid: {Held: 80 * gib, Reserved: 70 * gib, Peak: 80 * gib}}},
		"memory on a device that it calls by another name": {[]machine.Device{{UUID: "GPU-x", Used: 1 << 40, Driver: 5 * gib, Total: 2 << 40, Limited: true, Limit: gib}},
			map[string]Sums{UnknownDevice: {Held: 5 * gib, Reserved: gib, Peak: 5 * gib}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := eves(t, hostileMachine(tt.devices...), 1)
			expect.True(t, maps.Equal(got, tt.want), got, tt.want)
		})
	}
}

// A device whose size the driver does not say is there, and an instance of a divided device is at most as large as that.
func TestDevicesOfOtherSizes(t *testing.T) {
	mc := hostileMachine(machine.Device{UUID: uuid, Used: gib})
	mc.Devices[0].Total = 0
	expect.Equal(t, eves(t, mc, 1)[uuid].Held, gib)
	mc = hostileMachine(machine.Device{Device: 1, UUID: "MIG-1", Used: 1 << 40, Total: 10 * gib}, machine.Device{Device: 2, UUID: "MIG-2", Used: 1 << 40})
	mc.Devices[0].MIG = true
	got := eves(t, mc, 1)
	expect.True(t, got["MIG-1"].Held == 10*gib && got["MIG-2"].Held == 80*gib, got)
}

// working returns eve's job with a cap, a counter of its own, and what the driver's samples say.
func working(counter uint64, percent float64, devices int) *machine.Machine {
	mc := hostileMachine()
	j := &mc.Jobs[1]
	for n := range devices {
		j.Devices = append(j.Devices, machine.Device{Device: n, UUID: uuid, Used: gib, Compute: &machine.Compute{Max: 50, Used: counter}})
		j.Processes = append(j.Processes, machine.Process{Holdings: []machine.Holding{{Device: n, Compute: &machine.ProcessCompute{Used: counter}, Time: &machine.Time{Percent: percent, About: true}}}})
	}
	return mc
}

// A job that does not count its time pays by the driver's samples, which marks it. A kernel that has not ended yet is
// no lie, and counts once.
func TestHostileTime(t *testing.T) {
	m := NewMeter()
	now, total := monday, Sums{}
	pass := func(seconds int, counter uint64, percent float64, devices int) {
		for range seconds {
			now = now.Add(time.Second)
			m.Look(working(counter, percent, devices), now)
			if now.Sub(monday)%(5*time.Second) == 0 {
				m.Times(working(counter, percent, devices), 5*time.Second, now)
			}
			for s, sums := range m.Take().Sums {
				if s.UID == 6666 {
					total.add(sums)
				}
			}
		}
	}
	second := uint64(time.Second)
	pass(5, 1, 0, 1)
	pass(40, 1, 100, 1)
	expect.Equal(t, total.Sampled+total.Measured, 0, "a kernel runs")
	pass(60, 1+40*second, 0, 1)
	expect.Equal(t, total.Measured, 40*second, "it has ended")
	pass(600, 1+40*second, 100, 1)
	expect.Equal(t, total.Sampled, (600-60)*second, "the counter stands still, and the driver sees work")
	pass(60, 1+640*second, 0, 1)
	expect.Equal(t, total.Sampled+total.Measured, 640*second, "it was a kernel of ten minutes")
	pass(10, 1<<62, 100, 16)
	expect.True(t, total.Sampled+total.Measured <= 660*second, "more than all of the device's time", total)

	// One device many times, without a cap.
	total, m = Sums{}, NewMeter()
	pass(10, 0, 100, 16)
	expect.Equal(t, total.Sampled, 10*second, "all of the device's time, once")
}

// Whatever a job writes: nothing is added to another user's account, and no account has more than the device offers.
func TestHostileRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	number := func() uint64 { return r.Uint64() >> r.IntN(64) }
	for round := range 200 {
		const seconds = 20
		m := NewMeter()
		for n := range seconds + 1 {
			var devices []machine.Device
			for range r.IntN(17) {
				devices = append(devices, machine.Device{Device: r.IntN(16), UUID: []string{"", uuid, "GPU-1", "MIG-x", "\n"}[r.IntN(5)], Limited: r.IntN(2) == 0, Limit: number(), Used: number(), Peak: number(),
					Total: number(), Refused: number(), Compute: &machine.Compute{Max: r.IntN(2), Used: number()}})
			}
			mc := hostileMachine(devices...)
			j := &mc.Jobs[1]
			j.Died, j.Created, j.Labels = number(), monday.Add(time.Duration(r.IntN(40))*time.Second), map[string]string{job.Project: []string{"", "ada's"}[r.IntN(2)]}
			for range r.IntN(5) {
				j.Processes = append(j.Processes, machine.Process{Holdings: []machine.Holding{{Device: r.IntN(16), Compute: &machine.ProcessCompute{Used: number()}, Time: &machine.Time{Percent: float64(number()), About: r.IntN(2) == 0}}}})
			}
			now := monday.Add(time.Duration(n) * time.Second)
			m.Look(mc, now)
			m.Times(mc, time.Second, now)
		}
		for s, sums := range m.Take().Sums {
			if s.UID != 6666 {
				expect.Equal(t, sums, Sums{Held: 2 * gib * seconds, Idle: 2 * gib * seconds, Reserved: 10 * gib * seconds, Peak: 2 * gib}, "ada's account in round", round)
				continue
			}
			all := uint64(seconds) * 80 * gib
			expect.True(t, sums.Held <= all && sums.Reserved <= all && sums.Idle <= sums.Held && sums.Peak <= 80*gib, s, sums)
			expect.True(t, sums.Measured <= seconds*uint64(time.Second) && sums.Sampled <= (seconds+1)*uint64(time.Second), s, sums)
			expect.True(t, sums.Refused <= 16*seconds*maxCount && sums.Died <= seconds*maxCount, s, sums)
			expect.True(t, s.Device == uuid || s.Device == UnknownDevice || s.Device == "0", s)
		}
	}
}

// A user with very many subordinate users has as many accounts as one user, and none of the sum is lost. Otherwise the
// file would be full in days, and the oldest hours of all users would go.
func TestHostileSubordinates(t *testing.T) {
	const users, first = 3 * maxSubjects, 100_000
	m := NewMeter()
	m.account = func(uid int) int {
		if uid >= first {
			return 6666
		}
		return uid
	}
	mc := machineWith(gib, 0, 0, "train")
	for n := range users {
		j := mc.Jobs[0]
		j.Path, j.UID, j.Owner = fmt.Sprint("/", n), first+n, fmt.Sprint(first+n)
		mc.Jobs = append(mc.Jobs, j)
	}
	eve := mc.Jobs[0]
	eve.Path, eve.UID, eve.Owner = "/eve", 6666, "eve"
	mc.Jobs = append(mc.Jobs, eve)
	m.Look(mc, monday)
	m.Look(mc, monday.Add(time.Second))
	sums := m.Take().Sums
	expect.Equal(t, len(sums), 1+maxSubjects+1+1, "ada's, those of eve's users, one for the others, and eve's")
	expect.Equal(t, sums[train].Held, gib)
	expect.Equal(t, sums[Subject{UID: 6666, Owner: "eve", Job: OtherJobs, Device: train.Device}].Held, gib)
	expect.Equal(t, sums[Subject{UID: first + maxSubjects, Owner: fmt.Sprint(first + maxSubjects), Job: OtherJobs, Device: train.Device}].Held, (users-maxSubjects)*gib)
}

// Only devices that a job has used take one of its user's accounts, however many the machine has.
func TestMeterUnusedDevices(t *testing.T) {
	const jobs, devices = maxSubjects - 1, 16
	m := NewMeter()
	for n := range jobs {
		mc := machineWith(gib, 0, 0, fmt.Sprint("fold", n))
		mc.Devices = []machine.GPU{{UUID: "GPU-0", Total: 80 * gib}}
		for d := 1; d < devices; d++ {
			uuid := fmt.Sprint("GPU-", d)
			mc.Devices = append(mc.Devices, machine.GPU{Device: d, UUID: uuid, Total: 80 * gib})
			mc.Jobs[0].Devices = append(mc.Jobs[0].Devices, machine.Device{Device: d, UUID: uuid, Limited: true})
		}
		now := monday.Add(time.Duration(2*n) * time.Second)
		m.Times(mc, time.Second, now)
		m.Look(mc, now)
		m.Look(mc, now.Add(time.Second))
		m.Times(mc, time.Second, now)
	}
	sums := m.Take().Sums
	expect.Equal(t, len(sums), jobs, "an account for each job")
	for s, got := range sums {
		expect.True(t, s.Device == "GPU-0" && s.Job != OtherJobs && got.Idle == got.Held, s, got)
	}
}

// What users name their jobs and projects is one line in every report, and no character of it is for a terminal.
func TestHostileNames(t *testing.T) {
	s := Subject{Owner: "eve", UID: 6666, Project: "a\u202eb\u009b2J", Job: "x\nroot,,slurm-7\x1b[2J"}
	expect.Equal(t, keyLine(ByJob, s), Line{User: "eve", Project: "a?b?2J", Job: "x?root,,slurm-7?[2J"})
	expect.Equal(t, keyLine(ByProject, s), Line{Project: "a?b?2J"})
}
