package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// Processes are behind those that started them, and none is lost, whatever the parents are.
func TestTree(t *testing.T) {
	p := func(pid, parent int) machine.Process { return machine.Process{HostPID: pid, Parent: parent} }
	for name, c := range map[string]struct {
		all  []machine.Process
		want string
	}{
		"none":         {nil, ""},
		"a launcher":   {[]machine.Process{p(3, 1), p(1, 0), p(2, 1), p(4, 3), p(5, 0)}, "1.0 3.1 4.2 2.1 5.0"},
		"unknown":      {[]machine.Process{p(0, 0), p(0, 0), p(7, 99)}, "0.0 0.0 7.0"},
		"its own":      {[]machine.Process{p(7, 7)}, "7.0"},
		"in a circle":  {[]machine.Process{p(7, 8), p(8, 7)}, ""},
		"unseen child": {[]machine.Process{p(1, 0), p(0, 1)}, "1.0 0.1"},
	} {
		var got []string
		for p, depth := range Tree(c.all) {
			got = append(got, fmt.Sprint(p.HostPID, ".", depth))
		}
		expect.True(t, len(got) == len(c.all) && (c.want == "" || strings.Join(got, " ") == c.want), name, got, c.want)
	}
}

// Devices of which nothing was asked for are one range where their limits are the same; those that
// are in use, or were, are each its own.
func TestDeviceRanges(t *testing.T) {
	device := func(n int, uuid string, total, limit, peak uint64) machine.Device {
		return machine.Device{Device: n, UUID: uuid, Total: total, Limited: limit > 0, Limit: limit, Peak: peak}
	}
	for want, devices := range map[string][]machine.Device{
		"0-1 2 3":   {device(0, "a", 80, 10, 0), device(1, "b", 80, 10, 0), device(2, "c", 80, 10, 5), device(3, "d", 80, 20, 0)},
		"0-2":       {device(0, "", 0, 10, 0), device(1, "", 0, 10, 0), device(2, "", 0, 10, 0)},
		"0 1":       {device(0, "a", 80, 10, 1), device(1, "b", 80, 10, 1)},
		"0 1 again": {device(0, "a", 80, 10, 0), device(1, "b", 40, 10, 0)},
		"0 2":       {device(0, "a", 80, 10, 0), device(2, "b", 80, 10, 0)},
		"":          {device(0, "", 0, 0, 0)},
	} {
		var got []string
		for _, r := range DeviceRanges(devices) {
			got = append(got, r.String())
		}
		expect.Equal(t, strings.Join(got, " "), strings.TrimSuffix(want, " again"), want)
	}
}

// A device that a limit of nothing keeps the job off is left out, unless the job has had something of it, or has no other device.
func TestOpenRanges(t *testing.T) {
	device := func(n int, limit, peak uint64) machine.Device {
		return machine.Device{Device: n, Total: 80, Limited: true, Limit: limit, Peak: peak}
	}
	refused, escaped, free := device(1, 0, 0), device(1, 0, 0), device(1, 0, 0)
	refused.Refused, escaped.Driver, free.Limited = 1, 1, false
	for name, c := range map[string]struct {
		devices []machine.Device
		lent    bool
		want    string
	}{
		"closed":    {[]machine.Device{device(0, 10, 0), device(1, 0, 0), device(2, 20, 0), device(3, 20, 0)}, false, "0 2-3"},
		"used":      {[]machine.Device{device(0, 10, 0), device(1, 0, 5)}, false, "0 1"},
		"tried":     {[]machine.Device{device(0, 10, 0), refused}, false, "0 1"},
		"escaped":   {[]machine.Device{device(0, 10, 0), escaped}, false, "0 1"},
		"unlimited": {[]machine.Device{device(0, 10, 0), free}, false, "0 1"},
		"no other":  {[]machine.Device{device(0, 0, 0), device(1, 0, 0)}, false, "0-1"},
		"lent":      {[]machine.Device{device(0, 0, 5), device(1, 0, 0)}, true, "0 1"},
	} {
		var got []string
		for _, r := range OpenRanges(&machine.Job{Devices: c.devices, RationLent: c.lent}) {
			got = append(got, r.String())
		}
		expect.Equal(t, strings.Join(got, " "), c.want, name)
	}
}

func TestStateText(t *testing.T) {
	now := time.Unix(1e9, 0)
	job := func(state string, ago time.Duration, exit *machine.Exit) (j machine.Job) {
		j.State, j.Exit = state, exit
		if state == machine.Ended {
			j.Ended = now.Add(-ago)
		} else {
			j.Started = now.Add(-ago)
		}
		return j
	}
	for want, j := range map[string]machine.Job{
		"running 119s":                      job(machine.Running, 119*time.Second, nil),
		"idle 3m":                           job(machine.Idle, 200*time.Second, nil),
		"starting 47h":                      job(machine.Starting, 47*time.Hour, nil),
		"running 0s":                        job(machine.Running, -time.Hour, nil), // a clock that was set back
		"ended 2d ago with exit status 0":   job(machine.Ended, 48*time.Hour, &machine.Exit{}),
		"ended 5s ago by signal 9 (killed)": job(machine.Ended, 5*time.Second, &machine.Exit{Status: 137, Signal: 9}),
		"ended":                             {State: machine.Ended},
		"ended, its command 13s ago with exit status 4": {State: machine.Ended, CommandEnded: now.Add(-13 * time.Second), Exit: &machine.Exit{Status: 4}},
		"running": {State: machine.Running},
	} {
		expect.Equal(t, StateText(j, now), want)
	}
}
