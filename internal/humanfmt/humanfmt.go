// Package humanfmt formats numbers for people: three digits and a unit. limit.Size formats sizes
// exactly.
package humanfmt

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Three renders v with three significant digits, at most two of them decimals.
func Three(v float64) string {
	places := 0
	switch {
	case v < 9.995:
		places = 2
	case v < 99.95:
		places = 1
	}
	return strconv.FormatFloat(v, 'f', places, 64)
}

var timeUnits = []struct {
	at   float64
	name string
}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}, {0, "ns"}}

// Nanoseconds renders a time: 61.8 ns, 9.24 ms.
func Nanoseconds(ns float64) string { return Three(ns/scale(ns)) + " " + unit(ns) }

// GiBHours renders memory over time, from byte-seconds: 10 GiB for two hours are 20 GiB·h.
func GiBHours(byteSeconds uint64) string {
	return Three(float64(byteSeconds)/(1<<30)/3600) + " GiB·h"
}

// Duration is [Nanoseconds] of d.
func Duration(d time.Duration) string { return Nanoseconds(float64(d)) }

// Span renders a time without trailing zeros, for a sentence: 20 ms, 1.5 s, 12 min, 3 days, 0 s.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d <= 0: // a job can claim any time
		return "0 s"
	case d >= 2*day:
		return trim(Three(float64(d)/float64(day))) + " days"
	case d >= 2*time.Hour:
		return trim(Three(d.Hours())) + " h"
	case d >= 2*time.Minute:
		return trim(Three(d.Minutes())) + " min"
	}
	return trim(Three(float64(d)/scale(float64(d)))) + " " + unit(float64(d))
}

// Waited renders how long something waited, in whole seconds that have passed, as all that tell of one wait.
func Waited(d time.Duration) string { return Span(d.Truncate(time.Second)) }

// Range renders two times, with one unit where they share it: 239–416 ns.
func Range(low, high float64) string {
	if unit(low) == unit(high) {
		return Three(low/scale(low)) + "–" + Nanoseconds(high)
	}
	return Nanoseconds(low) + "–" + Nanoseconds(high)
}

func scale(ns float64) float64 {
	for _, u := range timeUnits {
		if ns >= u.at && u.at > 0 {
			return u.at
		}
	}
	return 1
}

func unit(ns float64) string {
	for _, u := range timeUnits {
		if ns >= u.at {
			return u.name
		}
	}
	return "ns"
}

// Percent renders a percentage.
func Percent(p float64) string {
	switch {
	case p > 0 && p < 0.001:
		return "<0.001 %"
	case p < 0.1:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	}
	return Three(p) + " %"
}

// Count renders a number with separators: 1,098,541.
func Count[N int | int64 | uint64](n N) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

const letters = "KMGTPE"

// Bytes renders a size for a sentence: 6.25 GiB.
func Bytes(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, letter := binary(n)
	return trim(Three(v)) + " " + letter + "iB"
}

// Short renders a size for a column: 6.25G.
func Short(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10)
	}
	v, letter := binary(n)
	return trim(Three(v)) + letter
}

// binary scales n to a unit in which it is less than 1024 after rounding.
func binary(n uint64) (float64, string) {
	v, power := float64(n)/1024, 0
	for math.Round(v) >= 1024 && power < len(letters)-1 {
		v, power = v/1024, power+1
	}
	return v, letters[power : power+1]
}

// trim drops trailing zeros of a fraction.
func trim(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

// Plural renders a number of things: 1 job, 2 jobs.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// ItOrThem returns the pronoun for a number of things.
func ItOrThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// Ranges renders sorted numbers, and those in a row as a range: 0,2-3, with "," and "-".
func Ranges(numbers []int, comma, dash string) string {
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		text := strconv.Itoa(numbers[i])
		if last > i {
			text += dash + strconv.Itoa(numbers[last])
		}
		parts, i = append(parts, text), last+1
	}
	return strings.Join(parts, comma)
}

// OnGPUs names sizes by device. Devices with the same size are named together: 40 GiB on GPUs 0, 1. The device -2
// stands for any two.
func OnGPUs(wants map[int]uint64) string {
	var sizes []uint64
	devices, numbers := map[uint64][]string{}, map[uint64][]int{}
	for _, d := range slices.Sorted(maps.Keys(wants)) {
		size := wants[d]
		if devices[size] == nil {
			sizes = append(sizes, size)
		}
		devices[size] = append(devices[size], strconv.Itoa(d))
		numbers[size] = append(numbers[size], d)
	}
	var parts []string
	for _, size := range sizes {
		gpus := "GPU "
		if len(devices[size]) > 1 {
			gpus = "GPUs "
		}
		if len(devices[size]) > 3 {
			gpus += Ranges(numbers[size], ", ", "-")
		} else {
			gpus += strings.Join(devices[size], ", ")
		}
		if n, any := strings.CutPrefix(devices[size][0], "-"); any {
			gpus = "any " + n + " GPUs"
			if n == "1" {
				gpus = "any GPU"
			}
		}
		parts = append(parts, Bytes(size)+" on "+gpus)
	}
	return strings.Join(parts, "; ")
}

// JobOf names a job and its owner, if that is known. A policy's jobs have the owner in their names.
func JobOf(title, owner string) string {
	switch {
	case title == owner:
		return "the job of " + owner
	case owner == "", strings.HasPrefix(title, owner+"/"):
		return "job " + title
	}
	return fmt.Sprintf("job %s of %s", title, owner)
}
