package tui

import (
	"slices"
	"strings"
	"time"

	"ration/internal/node"
	"ration/machine"
)

// maxHistory bounds the samples that are kept for a job and device.
const maxHistory = 600

// onDevice is a job's use of one device, by the path of its region.
type onDevice struct {
	path   string
	device int
}

// point is a job's use of a device at one time.
type point struct {
	time    time.Time
	used    uint64
	percent float64 // of the device's time; negative if unknown
}

// addHistory adds a sample, and drops jobs that are not in it.
func (m *Model) addHistory(s Sample) {
	seen := map[onDevice]bool{}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		for _, d := range j.Devices {
			key := onDevice{j.Path, d.Device}
			seen[key] = true
			all := append(m.history[key], point{s.Time, d.Used, node.TimeOn(j, d.Device)})
			m.history[key] = all[max(0, len(all)-maxHistory):]
		}
	}
	for key := range m.history {
		if !seen[key] {
			delete(m.history, key)
		}
	}
}

// addPast adds an agent's history of the jobs before the samples of this program.
func (m *Model) addPast(h *node.History, s Sample) {
	for i := range h.Jobs {
		past := &h.Jobs[i]
		same := func(j machine.Job) bool { return j.Path == past.Path && j.Created.Equal(past.Created) }
		if !slices.ContainsFunc(s.Jobs, same) {
			continue // the job was removed, or another one has its name
		}
		var all []point
		for n, at := range h.Times {
			if n >= len(past.Used) || past.Used[n] == nil || !at.Before(s.Time) {
				continue
			}
			all = append(all, point{at, *past.Used[n], percentAt(past.Compute, h.Times, n)})
		}
		m.history[onDevice{past.Path, past.Device}] = all
	}
}

// percentAt returns how much of a device's time a job had before value n, from the totals until
// then; negative if unknown.
func percentAt(used []*uint64, times []time.Time, n int) float64 {
	if n == 0 || n >= len(used) || used[n] == nil || used[n-1] == nil || *used[n] == 0 || *used[n] < *used[n-1] || !times[n].After(times[n-1]) {
		return -1
	}
	return min(100, 100*float64(*used[n]-*used[n-1])/float64(times[n].Sub(times[n-1])))
}

// cellTimes are the possible durations of a cell of a history.
var cellTimes = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour}

// maxGap is how long a value counts if the next is missing; an agent keeps one every five seconds.
const maxGap = 12 * time.Second

// cells returns one value for each cell. All cells cover the same duration: the shortest one in
// cellTimes, but at least the time between samples, with which all points fit. Cells begin at round
// times, so that the next frame has the same values in the same cells. A cell without a point has
// the value of the cell before, or -1.
func (m *Model) cells(points []point, value func(point) float64, width int) []float64 {
	first, last := points[0].time.UnixNano(), points[len(points)-1].time.UnixNano()
	length := int64(max(m.interval, 1))
	fits := func(length int64) bool { return last/length-first/length < int64(width) }
	for _, d := range cellTimes {
		if !fits(length) {
			length = max(length, int64(d))
		}
	}
	out := make([]float64, max(last/length-first/length, 0)+1)
	for i := range out {
		out[i] = -1
	}
	at, filled := 0, int64(0) // the last cell with a value, and its time
	for _, p := range points {
		ns := p.time.UnixNano()
		i := int(min(max(ns/length-first/length, 0), int64(len(out)-1)))
		if ns-filled <= int64(maxGap) {
			for gap := at + 1; gap < i; gap++ {
				out[gap] = out[at]
			}
		}
		out[i] = max(out[i], value(p))
		at, filled = i, ns
	}
	return out[max(0, len(out)-width):]
}

// sparkline draws values, one cell each, as fractions of a full cell. Negative values are blank.
func (m *Model) sparkline(values []float64) string {
	var out strings.Builder
	steps := m.theme.spark
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
