package machine

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// A policy moves memory between jobs: from a user's job to a run, back when the run ends, and from a job that sleeps to
// another user. It always lowers one limit before it raises another, so the limits of all its jobs fit at every instant.
// Jobs are read one after the other, and some of them not in every scan. So two reads may show the same memory twice, and
// a device would seem to be overbooked. settleRations replaces these limits by those of one instant: it reads all of them
// until two reads in a row are equal. The jobs' users cannot write these limits.
const settleTries = 16

// settleRations sets the limits of memory of a policy's jobs to those of one instant. If they change all the time, it uses
// the last that it has read.
func (m *Machine) settleRations() {
	var at []int // indices in m.Jobs
	for i := range m.Jobs {
		if _, is := job.PolicyUser(m.Jobs[i].Path); is && m.Jobs[i].State != Ended {
			at = append(at, i)
		}
	}
	if len(at) < 2 {
		return
	}
	var limits map[string]memoryLimits
	for range settleTries {
		before := limits
		limits = map[string]memoryLimits{}
		for _, i := range at {
			limits[m.Jobs[i].Path] = readMemoryLimits(m.Jobs[i].Path)
		}
		if maps.Equal(before, limits) {
			break
		}
	}
	for _, i := range at {
		m.Jobs[i].setLimits(limits[m.Jobs[i].Path])
	}
}

// memoryLimits are the limits of memory of a job, by device.
type memoryLimits struct {
	known bool
	on    [abi.Devices]abi.Limit
}

// readMemoryLimits reads the limits of memory of a policy's job. Those of a job that has been removed are 0. It is a
// variable for tests.
var readMemoryLimits = func(path string) (out memoryLimits) {
	l, err := region.OpenOperatorLimits(path)
	out.known = err == nil || errors.Is(err, fs.ErrNotExist)
	for d := range out.on {
		if out.on[d] = abi.MakeLimit(0); err == nil {
			out.on[d], _ = l.Limit(d) // d is a device
		}
	}
	return out
}

// setLimits sets the job's limits of memory. The devices of the job may belong to an earlier result.
func (j *Job) setLimits(limits memoryLimits) {
	devices := slices.Clone(j.Devices)
	for i := range devices {
		if d := &devices[i]; limits.known && d.Limited && limits.on[d.Device].Limited() {
			d.Limit = limits.on[d.Device].Bytes()
		}
	}
	if !slices.Equal(devices, j.Devices) {
		j.Devices = devices
		j.RationLent = j.isLent()
	}
}
