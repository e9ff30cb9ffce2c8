package bench

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"ration/check/benchpage"
	"ration/check/harness/cuda"
	"ration/internal/gpu"
	"ration/internal/job"
)

// Comparison is a time without ration and with it, in nanoseconds.
type Comparison struct {
	Name   string           `json:"name"`
	Native benchpage.Spread `json:"native"`
	Job    benchpage.Spread `json:"in_job"`
	More   benchpage.Spread `json:"more"`   // in the job minus native, of the same round
	Noise  float64          `json:"noise"`  // relative difference of two native programs: the median
	Rounds int              `json:"rounds"` // of each program
}

// within is how long a program may take to answer.
const within = time.Minute

// Compare measures ordinary CUDA programs without ration and with it: on this machine's driver, or
// on the stand-in if there is none. It returns which driver was used.
func Compare(env Env, self string) (rows []Comparison, driver string, err error) {
	driver = StandIn
	real := false
	if d, err := gpu.Open(""); err == nil {
		if len(d.Devices) > 0 {
			real, driver = true, fmt.Sprintf("%s, driver %s", d.Devices[0].Name, d.Version)
		}
		d.Close()
	}
	err = inRegion(func(path string) error {
		m := cuda.StandIn{GPU: "h200", Region: path, Limit: 4 << 30, Context: 518 << 20, Real: real}
		if err := m.Unpack(); err != nil {
			return err
		}
		for _, part := range []func(Env, *cuda.StandIn) ([]Comparison, error){compareCalls, compareStart} {
			more, err := part(env, &m)
			if err != nil {
				return err
			}
			rows = append(rows, more...)
		}
		run, err := compareRun(env, self, filepath.Dir(path))
		rows = append(rows, run)
		return err
	})
	return rows, driver, err
}

// StandIn is what Compare returns if it used the stand-in driver.
const StandIn = "stand-in"

// Three programs are compared: two native ones, to see how much they differ, and one in a job. They
// alternate, and each is first equally often.
const (
	nativeOne = iota
	nativeTwo
	inJob
	sides
)

// perSide calls measure for each side in turn.
func perSide(n int, measure func(side int) ([]float64, error)) ([][][]float64, error) {
	var of [sides]func() ([]float64, error)
	for side := range of {
		of[side] = func() ([]float64, error) { return measure(side) }
	}
	return alternate(n, of[:]...)
}

// comparison is the k-th value of each round.
func comparison(name string, all [][][]float64, k int) Comparison {
	pick := func(side int) (out []float64) {
		for _, values := range all[side] {
			out = append(out, values[k])
		}
		return out
	}
	one, two, job := pick(nativeOne), pick(nativeTwo), pick(inJob)
	var more, noise []float64
	for i := range job {
		more = append(more, job[i]-one[i], job[i]-two[i])
		noise = append(noise, math.Abs(two[i]-one[i])/max(one[i], 1))
	}
	return Comparison{
		Name: name, Native: spreadOf(append(slices.Clone(one), two...)), Job: spreadOf(job), More: spreadOf(more),
		Noise: spreadOf(noise).Median, Rounds: len(job),
	}
}

func spreadOf(values []float64) benchpage.Spread {
	sorted := slices.Sorted(slices.Values(values))
	quantile := func(q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }
	return benchpage.Spread{Low: quantile(0.1), Median: quantile(0.5), High: quantile(0.9)}
}

// start starts a program on a side.
func start(m *cuda.StandIn, side int) (*cuda.Program, error) {
	if side == inJob {
		return m.Start(true)
	}
	return m.StartNative()
}

// compareCalls measures driver calls, one by one.
func compareCalls(env Env, m *cuda.StandIn) (rows []Comparison, err error) {
	const calls, bytes = 500, 1 << 20
	var programs [sides]*cuda.Program
	for side := range programs {
		if programs[side], err = start(m, side); err != nil {
			return nil, err
		}
		defer programs[side].Close()
		if _, err := programs[side].Do(within, "init"); err != nil {
			return nil, err
		}
	}
	n := env.pick(41, 3)
	all, err := perSide(n+1, func(side int) ([]float64, error) {
		env.Say("driver calls")
		got, err := programs[side].Do(within, "time %d %d", calls, bytes)
		if err == nil && len(got.Numbers) != 4 {
			err = fmt.Errorf("it answered %v to time", got.Numbers)
		}
		if err != nil {
			return nil, err
		}
		return []float64{float64(got.Numbers[0]), float64(got.Numbers[1]), float64(got.Numbers[2])}, nil
	})
	if err != nil {
		return nil, err
	}
	for side := range all {
		all[side] = all[side][1:] // in the first round caches and clocks adapt
	}
	for k, name := range []string{"cuMemAlloc of 1 MiB", "cuMemFree of 1 MiB", "cuMemGetInfo"} {
		rows = append(rows, comparison(name, all, k))
	}
	return rows, nil
}

// compareStart measures cuInit and a first context, each time in a new process.
func compareStart(env Env, m *cuda.StandIn) ([]Comparison, error) {
	all, err := perSide(env.pick(15, 2), func(side int) ([]float64, error) {
		env.Say("cuInit and a context")
		p, err := start(m, side)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		if _, err := p.Do(within, "free"); err != nil { // it has started, and holds nothing
			return nil, err
		}
		from := time.Now()
		if _, err := p.Do(within, "init"); err != nil {
			return nil, err
		}
		took := float64(time.Since(from))
		if _, err := p.Do(within, "quit"); err != nil {
			return nil, err
		}
		return []float64{took}, p.Wait(within)
	})
	if err != nil {
		return nil, err
	}
	return []Comparison{comparison("cuInit and a context", all, 0)}, nil
}

// compareRun measures the command true, started by itself and by ration run.
func compareRun(env Env, self, folder string) (Comparison, error) {
	jobs := filepath.Join(folder, "jobs")
	all, err := perSide(env.pick(31, 2), func(side int) ([]float64, error) {
		env.Say("ration run")
		cmd := exec.Command("true")
		if side == inJob {
			cmd = exec.Command(self, "run", "--mem", "1g", "--name", "bench", "--", "true")
			cmd.Args[0] = "ration"
			cmd.Env = append(os.Environ(), job.EnvFolder+"="+jobs)
		}
		cmd.Stderr = io.Discard // it warns that there is no driver
		from := time.Now()
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("running %v: %w", cmd.Args, err)
		}
		return []float64{float64(time.Since(from))}, nil
	})
	if err != nil {
		return Comparison{}, err
	}
	return comparison("start of a command, by ration run", all, 0), nil
}
