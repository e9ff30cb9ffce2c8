package tui

import (
	"strings"
	"time"

	"ration/machine"
)

// maxHistory is how many samples of a device of a job are kept.
const maxHistory = 600

// onDevice is a job's use of one device, by the path of its region.
type onDevice struct {
	path   string
	device int
}

// point is what a job had of a device at one time.
type point struct {
	time    time.Time
	used    uint64
	percent float64 // of the device's time; below 0 where that is not known
}

// addHistory appends a sample, and forgets the jobs that are not in it.
func (m *Model) addHistory(s Sample) {
	seen := map[onDevice]bool{}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		for _, d := range j.Devices {
			key := onDevice{j.Path, d.Device}
			seen[key] = true
			all := append(m.history[key], point{s.Time, d.Used, timeOn(j, d.Device)})
			m.history[key] = all[max(0, len(all)-maxHistory):]
		}
	}
	for key := range m.history {
		if !seen[key] {
			delete(m.history, key)
		}
	}
}

// timeOn adds up what a job's processes had of a device's time lately, in per cent. It is below
// 0 where that is not known.
func timeOn(j *machine.Job, device int) float64 {
	sum := -1.0
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if h.Device == device && h.Time != nil {
				sum = max(sum, 0) + h.Time.Percent
			}
		}
	}
	return sum
}

// sparkline draws the latest values, one cell each, as parts of a full cell. Those below 0 are
// blanks.
func (m *Model) sparkline(values []float64, width int) string {
	var out strings.Builder
	steps := m.theme.spark
	values = values[max(0, len(values)-width):]
	for _, v := range values {
		switch {
		case v < 0:
			out.WriteString(" ")
		default:
			out.WriteString(steps[min(int(v*float64(len(steps)-1)+0.5), len(steps)-1)])
		}
	}
	return out.String()
}
