package node

import (
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

const idleGiB = 1 << 30

// notebook returns a machine with a job that holds 40 GiB in one process.
func notebook() *machine.Machine {
	return &machine.Machine{Jobs: []machine.Job{{Name: "notebook", Path: "/n", Owner: "ada", UID: 1000, State: machine.Running, Created: time.Unix(1, 0),
		Devices:   []machine.Device{{UUID: "GPU-0", Used: 40 * idleGiB}},
		Processes: []machine.Process{{State: machine.Live, HostPID: 7, Holdings: []machine.Holding{{Total: 40 * idleGiB, Time: &machine.Time{About: true}}}}}}}}
}

// A job is idle only if it holds memory, and the library or the driver says of all its processes that they do nothing.
func TestIdle(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*machine.Machine)
		idle   bool
	}{
		"does nothing":       {func(*machine.Machine) {}, true},
		"measured":           {func(m *machine.Machine) { m.Jobs[0].Processes[0].Holdings[0].Time.About = false }, true},
		"a little work":      {func(m *machine.Machine) { m.Jobs[0].Processes[0].Holdings[0].Time.Percent = 0.1 }, false},
		"unknown":            {func(m *machine.Machine) { m.Jobs[0].Processes[0].Holdings[0].Time = nil }, false},
		"processes left out": {func(m *machine.Machine) { m.Jobs[0].Omitted = &machine.Omitted{Processes: 1} }, false},
		"processes outside":  {func(m *machine.Machine) { m.Jobs[0].Devices[0].Escaped = 1 }, false},
		"holds nothing":      {func(m *machine.Machine) { m.Jobs[0].Devices[0].Used = 0 }, false},
		"unreadable":         {func(m *machine.Machine) { m.Jobs[0].Error = "damaged" }, false},
		"waits for the device": {func(m *machine.Machine) {
			m.Jobs[0].Processes[0].Holdings[0].Compute = &machine.ProcessCompute{Waiting: true}
		}, false},
		"work in a context": {func(m *machine.Machine) {
			m.Jobs[0].Processes[0].Holdings[0].Compute = &machine.ProcessCompute{Working: 1}
		}, false},
		"behind the user's MPS":     {func(m *machine.Machine) { m.Outside = []machine.Outside{{Name: mpsName, UID: 1000}} }, false},
		"behind root's MPS":         {func(m *machine.Machine) { m.Outside = []machine.Outside{{Name: mpsName}} }, false},
		"another user says MPS":     {func(m *machine.Machine) { m.Outside = []machine.Outside{{Name: mpsName, UID: 1001}} }, true},
		"one of two is not known":   {func(m *machine.Machine) { addProcess(m, machine.Live, nil) }, false},
		"the other works":           {func(m *machine.Machine) { addProcess(m, machine.Live, &machine.Time{Percent: 50}) }, false},
		"the other is dead":         {func(m *machine.Machine) { addProcess(m, machine.Dead, nil) }, true},
		"only the driver counts it": {func(m *machine.Machine) { m.Jobs[0].Devices[0].Used, m.Jobs[0].Devices[0].Driver = 0, 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			i, at := NewIdleness(10*time.Minute), time.Unix(1000, 0)
			for range 121 {
				m := notebook()
				test.change(m)
				i.Look(m, at)
				at = at.Add(5 * time.Second)
			}
			m := notebook()
			jobs := i.Mark(m.Jobs, time.Unix(1600, 0))
			expect.Equal(t, jobs[0].State == machine.Idle, test.idle)
			expect.Equal(t, !jobs[0].IdleSince.IsZero(), test.idle)
			expect.Equal(t, m.Jobs[0].State, machine.Running) // the scanner's own job is not changed
		})
	}
}

func addProcess(m *machine.Machine, state string, had *machine.Time) {
	m.Jobs[0].Processes = append(m.Jobs[0].Processes, machine.Process{State: state, Holdings: []machine.Holding{{Total: 1, Time: had}}})
}

// The time begins again when the job works, allocates, or is not known for a moment.
func TestIdleBeginsAgain(t *testing.T) {
	for name, change := range map[string]func(*machine.Machine){
		"works":     func(m *machine.Machine) { m.Jobs[0].Processes[0].Holdings[0].Time.Percent = 1 },
		"allocates": func(m *machine.Machine) { m.Jobs[0].Devices[0].Used++ },
		"unknown":   func(m *machine.Machine) { m.Jobs[0].Processes[0].Holdings[0].Time = nil },
		"gone":      func(m *machine.Machine) { m.Jobs = nil },
	} {
		t.Run(name, func(t *testing.T) {
			i, start := NewIdleness(time.Minute), time.Unix(1000, 0)
			i.Look(notebook(), start)
			changed := notebook()
			change(changed)
			i.Look(changed, start.Add(50*time.Second))
			i.Look(notebook(), start.Add(55*time.Second))
			expect.Equal(t, i.Mark(notebook().Jobs, start.Add(61*time.Second))[0].State, machine.Running)
			expect.Equal(t, i.Mark(notebook().Jobs, start.Add(115*time.Second))[0].State, machine.Idle)
		})
	}
}
