package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"ration/internal/safepath"
)

// division is what two programs got that were busy side by side, one with a fifth of the GPU's time.
// A driver may take a time slice, say that it has it, and not keep it: only work shows that.
type division struct {
	Least float64   `json:"least"` // per cent of all that both got done, of the one with 20 %; 0: they did nothing
	At    time.Time `json:"at"`
}

// measureFor is how long the two programs work.
const measureFor = time.Second

// leastShare is the share of one of them, in per cent. The other has the rest.
const leastShare = 20

type answer int

const (
	unknown answer = iota // kernels of this driver take no time, as a stand-in's
	kept
	unclear
	ignored
)

// keeps tells a GPU that gave one program about a fifth from one that gave both the same.
func (d division) keeps() answer {
	switch {
	case d.Least == 0:
		return unknown
	case d.Least < 28:
		return kept
	case d.Least < 40:
		return unclear
	}
	return ignored
}

func (d division) text(remembered bool) string {
	if d.Least == 0 {
		return ""
	}
	when := ""
	if remembered {
		when = ", on " + d.At.Format(time.DateOnly) + " (--measure measures again)"
	}
	return fmt.Sprintf("two busy programs with shares of %d and %d %% got %.0f and %.0f %%%s", leastShare, 100-leastShare, d.Least, 100-d.Least, when)
}

// measureSlices measures, or returns what was measured earlier with the same driver and kind of GPU.
func (c *checker) measureSlices() (d division, remembered bool, err error) {
	key := fmt.Sprintf("driver %s, %s", orUnknown(c.bare["driver"]), orUnknown(c.bare["gpu"]))
	if c.FakeGPU != "" {
		key = "stand-in " + key
	}
	file, known := "", map[string]division{}
	if dir, err := os.UserCacheDir(); err == nil {
		file = filepath.Join(dir, "ration", "slices.json")
		if text, err := os.ReadFile(file); err == nil {
			_ = json.Unmarshal(text, &known) // a file that cannot be read is written again
		}
	}
	if d, ok := known[key]; ok && !c.Measure && d.keeps() != unclear {
		return d, true, nil
	}
	if d, err = c.shareOfWork(); err != nil || file == "" || d.keeps() == unknown {
		return d, false, err
	}
	if known == nil {
		known = map[string]division{}
	}
	known[key] = d
	text, err := json.Marshal(known)
	if err == nil && os.MkdirAll(filepath.Dir(file), 0o700) == nil {
		_ = safepath.Replace(file, append(text, '\n'), 0o600) // without it, the next run measures again
	}
	return d, false, nil
}

// shareOfWork runs two busy programs side by side on device 0.
func (c *checker) shareOfWork() (division, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var probes [2]*sharingProbe
	var errs [2]error
	var ready sync.WaitGroup
	for i, percent := range []int{leastShare, 100 - leastShare} {
		ready.Go(func() {
			var result string
			if probes[i], result, errs[i] = c.startProbe(ctx, "work", strconv.Itoa(percent)); errs[i] == nil && result != "0" {
				errs[i] = fmt.Errorf("loading a kernel: error %s of the driver", result)
			}
		})
	}
	ready.Wait()
	for _, p := range probes {
		if p != nil {
			defer p.end()
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return division{}, err
	}
	for _, p := range probes {
		if _, err := p.in.Write([]byte{'g'}); err != nil {
			return division{}, fmt.Errorf("starting the work of the probe: %w", err)
		}
	}
	time.Sleep(measureFor)
	var did [2]float64
	for _, p := range probes {
		_ = p.in.Close()
	}
	for i, p := range probes {
		text, err := p.read("done")
		if err != nil {
			return division{}, err
		}
		if did[i], err = strconv.ParseFloat(text, 64); err != nil {
			return division{}, fmt.Errorf("reading what the probe did: %w", err)
		}
	}
	d := division{At: time.Now()}
	if all := did[0] + did[1]; all > 0 {
		d.Least = 100 * did[0] / all
	}
	return d, nil
}
