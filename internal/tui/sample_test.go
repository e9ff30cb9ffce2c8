package tui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/machine"
)

// example is a sample with a job at work, one whose limit was lowered, one without
// limits, one that cannot be read, and one that has ended.
func example() Sample {
	train := machine.Job{Name: "train", Path: "/run/ration/train/region", Owner: "dev", Launcher: "dev", State: machine.Running, Command: []string{"python", "train.py", "--epochs", "90", "--name", "a\x1b[31mb"},
		Created: ago(time.Hour), Started: ago(time.Hour),
		Devices: []machine.Device{{Device: 0, Limited: true, Limit: 10 * gib, Used: 6 * gib, Peak: 9 * gib, Total: 80 * gib, Refused: 4}},
		Processes: []machine.Process{
			process(0, 4711, "dev", "python train.py", time.Hour, holds(0, 518*mib, 2*gib)),
			process(1, 4712, "dev", "python train.py", 50*time.Minute, holds(0, 518*mib, 1*gib)),
			process(2, 4720, "dev", "loader", 90*time.Second, holds(0, 0, 256*mib)),
			process(3, 9, "ops", "eval\x1b[2J", 40*time.Hour, holds(0, 518*mib, 900*mib)),
		},
		Deaths: []machine.Death{{Time: ago(20 * time.Second), Slot: 4, PID: 4713, Name: "python train.py", Held: []machine.DeathHeld{{Device: 0, Bytes: 1542 * mib}}}},
		Refusals: []machine.Refusal{
			{Time: ago(2 * time.Second), Slot: 0, PID: 4711, Asked: 4*gib + 512*mib, Held: 6 * gib, Limit: 10 * gib, Own: 2566 * mib,
				Top: []machine.Holder{{PID: 4711, Bytes: 2566 * mib}, {PID: 4712, Bytes: 1542 * mib}, {PID: 9, Bytes: 1418 * mib}}},
			{Time: ago(3 * time.Second), Slot: 0, PID: 4711, Asked: 4*gib + 512*mib, Held: 6 * gib, Limit: 10 * gib},
			{Time: ago(10 * time.Minute), Slot: 7, PID: 4650, Asked: 8 * gib, Held: 3 * gib, Limit: 10 * gib,
				Top: []machine.Holder{{PID: 4712, Bytes: 3 * gib}}},
		}}
	for i, command := range [][]string{{"python", "train.py", "--epochs", "90", "--rank", "0"}, {"python", "train.py", "--epochs", "90", "--rank", "1"}, {"loader", "a\x1b[31mb"}} {
		train.Processes[i].Host = &machine.HostUse{Command: command, CPU: machine.Time{Percent: 99.6 - 40*float64(i), Seconds: 1}, RSS: uint64(i+1) * 700 * mib}
	}
	train.Processes[1].Parent, train.Processes[2].Parent = 4711, 4712
	train.Processes[2].State = machine.Stopped
	train.Processes[3].Verified = false // only its job says that it is that one
	serve := machine.Job{Name: "serve", Path: "/run/ration/serve/region", Owner: "root", State: machine.Running, Created: ago(72 * time.Hour),
		Devices: []machine.Device{
			{Device: 0, Limited: true, Limit: 4 * gib, Used: 6 * gib, Peak: 7 * gib},
			{Device: 1, Limited: true, Limit: 20 * gib, Used: 17 * gib, Peak: 17 * gib},
		},
		Processes: []machine.Process{process(0, 31, "root", "tritonserver", 72*time.Hour, holds(0, 518*mib, 5*gib), holds(1, 518*mib, 16*gib))}}
	serve.Processes[0].HostPID, serve.Processes[0].Local.PID = 2201931, 2201931
	free := machine.Job{Name: "notebook-of-somebody-with-a-long-name", Path: "/run/ration/notebook/region", Owner: "eve", State: machine.Running, Created: ago(5 * time.Second),
		Devices:   []machine.Device{{Device: 0, Used: 20 * mib, Peak: 30 * gib, Total: 80 * gib}},
		Processes: []machine.Process{process(0, 5000, "eve", "ipykernel_launcher", 5*time.Second, holds(0, 0, 20*mib))}}
	old := machine.Job{Name: "old", Path: "/run/ration/old/region", Owner: "dev", State: machine.Ended, Error: "opening /run/ration/old/region: region of another version: it has version 7"}
	ended := machine.Job{Name: "yesterday", Path: "/run/ration/yesterday/region", Owner: "eve", State: machine.Ended, Created: ago(30 * time.Hour),
		Exit: &machine.Exit{Status: 1}, Ended: ago(20 * time.Hour),
		Devices: []machine.Device{{Device: 0, Limited: true, Limit: 10 * gib, Peak: 9 * gib, Total: 80 * gib}}}
	return Sample{Time: noon, Machine: machine.Machine{Folder: "/run/ration", Jobs: []machine.Job{ended, free, train, serve, old}}}
}

// wholeMachine is example on a machine with a driver: two GPUs, one of them overbooked, and a
// process that is in no job.
func wholeMachine() Sample {
	s := example()
	temperature, power, busy := 61, 412.3, 97
	s.Devices = []machine.GPU{
		{Device: 0, Name: "NVIDIA H200", Total: 80 * gib, Used: 52 * gib, Rations: 14 * gib, Jobs: 2, Unlimited: 1, Temperature: &temperature, Power: &power, Utilization: &busy},
		{Device: 1, Name: "NVIDIA H200", Total: 16 * gib, Used: 17 * gib / 2, Rations: 20 * gib, Jobs: 2},
	}
	s.Outside = []machine.Outside{{Device: 0, PID: 777, Local: machine.ProcessID{PID: 777, Start: 1}, UID: 1004, User: "mallory", Name: "xmrig\x1b]0;x", Container: "docker/0123456789ab", Used: 40 * gib}}
	s.Findings = []machine.Finding{
		{Kind: machine.Overbooked, Device: 1, Text: "device 1 is overbooked: 2 jobs have 20 GiB of its 16 GiB together, and may find none left within their limits", Remedy: "lower a limit with ration limit, or start fewer jobs there"},
		{Kind: machine.OutsideJobs, Device: 0, PID: 777, Text: "xmrig (pid 777) of user mallory holds 40 GiB of device 0, and belongs to no job", Remedy: "start it with ration run, so that it has a limit"},
	}
	return s
}

// asleep is a machine with a job that sleeps, a job that should sleep and cannot, and a job that wakes.
func asleep() Sample {
	s := wholeMachine()
	nb := machine.Job{Name: "notebook", Path: "/run/ration/notebook/region", Owner: "dev", State: machine.Running, Created: ago(50 * time.Hour), Started: ago(50 * time.Hour),
		Sleep: machine.Asleep, Sleeps: 3, SleepAfter: 600_000, Devices: []machine.Device{{Device: 0, Limited: true, Limit: 40 * gib, Aside: 36 * gib, Peak: 38 * gib}},
		Processes: []machine.Process{process(0, 4242, "dev", "jupyter", 50*time.Hour, machine.Holding{Device: 0, Aside: 36 * gib, Peak: 38 * gib})}}
	stuck, waking := nb, nb
	stuck.Name, stuck.Path, stuck.Sleep, stuck.CannotSleep = "stuck", "/run/ration/stuck/region", "", "it cannot sleep: pid 4243 (jupyter) shares memory with other processes"
	stuck.Devices = []machine.Device{{Device: 0, Limited: true, Limit: 12 * gib, Used: 10 * gib, Peak: 10 * gib}}
	stuck.Processes = []machine.Process{process(0, 4243, "dev", "jupyter", 50*time.Hour, holds(0, gib, 9*gib))}
	waking.Name, waking.Path, waking.Sleep = "waking", "/run/ration/waking/region", machine.Waking
	waking.Devices = []machine.Device{{Device: 1, Limited: true, Limit: 4 * gib, Used: 3 * gib, Peak: 3 * gib}}
	waking.Processes = nil
	s.Jobs = []machine.Job{nb, stuck, waking}
	return s
}

func modelOf(s Sample, width, height int, environ ...string) *Model {
	m := New(func() Sample { return s }, nil, time.Second, NewTheme(append([]string{"LANG=C.UTF-8"}, environ...)), Settings{})
	m.zone = time.UTC
	m.setSample(s)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

// keyCodes are the keys that type no text.
var keyCodes = map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab,
	"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace}

// press presses keys, and does what they begin before the next. "text:10g" types 10g.
func press(t *testing.T, m *Model, keys ...string) {
	t.Helper()
	for _, key := range keys {
		var all []tea.KeyPressMsg
		if text, is := strings.CutPrefix(key, "text:"); is {
			for _, r := range text {
				all = append(all, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		} else if code, is := keyCodes[key]; is {
			all = append(all, tea.KeyPressMsg{Code: code})
		} else if key == "space" {
			all = append(all, tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
		} else {
			all = append(all, tea.KeyPressMsg{Code: []rune(key)[0], Text: key})
		}
		for _, msg := range all {
			if _, cmd := m.Update(msg); cmd != nil {
				m.Update(cmd())
			}
		}
	}
}

// many is a sample with more jobs, each with so many processes, than fit.
func many(jobs, processes int) Sample {
	s := Sample{Time: noon}
	for j := range jobs {
		status := machine.Job{Name: fmt.Sprintf("job-%d", j), Path: fmt.Sprintf("/run/ration/job-%d/region", j), State: machine.Running}
		for d := range 2 {
			status.Devices = append(status.Devices, machine.Device{Device: d, Limited: true, Limit: 10 * gib, Used: uint64(j) * gib, Peak: 10 * gib})
		}
		for p := range processes {
			status.Processes = append(status.Processes, process(p, 1000*j+p, "dev", fmt.Sprintf("worker-%d", p), time.Duration(p)*time.Minute, holds(0, 0, uint64(p)*mib)))
		}
		s.Jobs = append(s.Jobs, status)
	}
	return s
}

// sixteen is a sample with 16 GPUs, of which the last is overbooked.
func sixteen() Sample {
	s := example()
	for i := range 16 {
		busy := (i * 13) % 101
		s.Devices = append(s.Devices, machine.GPU{Device: i, Name: "NVIDIA H200", Total: 140 * gib, Used: uint64(i) * 9 * gib, Rations: 100 * gib, Jobs: 2, Utilization: &busy})
	}
	s.Devices[15].Rations = 150 * gib
	s.Findings = wholeMachine().Findings
	return s
}

// onlyPath is a sample with a job without a name.
func onlyPath() Sample {
	s := example()
	s.Jobs = s.Jobs[2:3]
	s.Jobs[0].Name, s.Jobs[0].Path = "", "/var/lib/somewhere/vgpu/5f0c/cache"
	return s
}

// computing is a sample with shares and caps: one job whose processes have their slices, one
// with a cap, and one whose share is not enforced.
func computing(enforced bool) Sample {
	s := example()
	has := func(p *machine.Process, state string, slice uint64, working int, waited uint64, t *machine.Time) {
		for i := range p.Holdings {
			p.Holdings[i].Compute = &machine.ProcessCompute{State: state, Slice: slice, Working: working, Waited: waited}
			p.Holdings[i].Time = t
		}
	}
	train, serve, free := &s.Jobs[2], &s.Jobs[3], &s.Jobs[1]
	train.Devices[0].Compute = &machine.Compute{Share: 30, Max: 50, Round: 20_000, Working: 2}
	for i := range train.Processes {
		has(&train.Processes[i], machine.Kept, 3000, i%2, uint64(i)*1200e6, &machine.Time{Percent: 12.4, Seconds: 5})
	}
	serve.Devices[1].Compute = &machine.Compute{Max: 5, Round: 20_000}
	free.Processes[0].Holdings[0].Time = &machine.Time{Percent: 42.6, Seconds: 6, About: true}
	if !enforced {
		serve.Devices[0].Compute = &machine.Compute{Share: 70, Round: 20_000}
		serve.Processes[0].Holdings[0].Compute = &machine.ProcessCompute{State: machine.NotEnforced, Reason: "the driver refused the time slice"}
	}
	return s
}
