package tui

import (
	"slices"
	"strings"
	"time"

	"ration/internal/node"
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

// addPast puts what an agent has kept of jobs before the samples of this program.
func (m *Model) addPast(h *node.History, s Sample) {
	for i := range h.Jobs {
		past := &h.Jobs[i]
		same := func(j machine.Job) bool { return j.Path == past.Path && j.Created.Equal(past.Created) }
		if !slices.ContainsFunc(s.Jobs, same) {
			continue // it is gone, or another one has its name
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

// percentAt returns how much of a device's time a job had before the value of a number, by what had
// been measured until then; below 0 where nothing was.
func percentAt(used []*uint64, times []time.Time, n int) float64 {
	if n == 0 || n >= len(used) || used[n] == nil || used[n-1] == nil || *used[n] == 0 || *used[n] < *used[n-1] || !times[n].After(times[n-1]) {
		return -1
	}
	return min(100, 100*float64(*used[n]-*used[n-1])/float64(times[n].Sub(times[n-1])))
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

// cellTimes are what a cell of a history may be of.
var cellTimes = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour}

// maxGap is how long a value counts where the next is missing: an agent keeps one every five seconds.
const maxGap = 12 * time.Second

// cells returns the values of points, one for each of the cells, which are of the same time each: the
// shortest, but for the time between samples, with which all of them fit. Their borders are at round
// times, so that a frame later the same values are in the same cells. A cell without a point has that
// of the cell before, or -1.
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
	at, filled := 0, int64(0) // the last cell with a value, and when that was
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

// sparkline draws values, one cell each, as parts of a full cell. Those below 0 are blanks.
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
