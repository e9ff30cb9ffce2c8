package gputest

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"time"
)

// Programs that share the device: what each gets done, against what it gets done alone.

// work is what a program does: kernels of a length, or graphs of them.
type work struct {
	us    int // of a kernel, alone
	nodes int // of a graph; 0 is launches
}

var (
	launches    = work{us: 200}
	graphs      = work{us: 200, nodes: 10}
	longKernels = work{us: 200_000}
)

// pace is how fast work goes alone.
type pace struct {
	rounds, ns float64 // of a kernel, as the program busy answers calibrate
	perSecond  float64 // kernels
}

// sharer is a job that shares the device.
type sharer struct {
	share, cap int    // per cent; 0 is none
	round      string // as ration run takes it; empty is its default
	native     bool   // no job, but a program by itself
	processes  int    // 0 is one
	idle       int    // processes of it that have a context and no work
}

func (s sharer) String() string {
	switch {
	case s.native:
		return "native"
	case s.cap != 0:
		return fmt.Sprintf("≤%d", s.cap)
	}
	return fmt.Sprint(s.share)
}

// flags returns the flags of ration run.
func (s sharer) flags() (flags []string) {
	if s.share != 0 {
		flags = append(flags, "--compute", fmt.Sprint(s.share))
	}
	if s.cap != 0 {
		flags = append(flags, "--compute-max", fmt.Sprint(s.cap))
	}
	if s.round != "" {
		flags = append(flags, "--compute-round", s.round)
	}
	return flags
}

// shareLimit is the memory limit of a sharer: enough for its contexts.
const shareLimit = 12 * gib

// join starts the programs of a sharer, in a job of its own, and has them do one thing
// first. The ones that are to be idle come last.
func (t *Trial) join(s sharer, first string, command ...string) (all []*Program, err error) {
	t.job.Name, t.flags = "", s.flags()
	if !s.native {
		if err := t.open(shareLimit); err != nil {
			return nil, err
		}
		t.joined = append(t.joined, t.job)
	}
	for range max(s.processes, 1) {
		p, err := t.start(nil, command...)
		if err != nil {
			return nil, err
		}
		if _, err := p.ask(0, "%s", first); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// pace returns how fast work goes alone. It is measured once for each kind.
func (t *Trial) pace(w work) (p pace, err error) {
	if p, found := t.alone[w]; found {
		return p, nil
	}
	inner := t.newTrial(t.quick)
	defer inner.close()
	all, err := inner.join(sharer{native: true}, "init", t.native("busy")...)
	if err != nil {
		return p, fmt.Errorf("%w %s", err, inner.logs())
	}
	one, err := all[0].ask(2, "calibrate %d", w.us)
	if err != nil {
		return p, err
	}
	p.rounds, p.ns = one[0], one[1]
	if err := setWork(all, w, p); err != nil {
		return p, err
	}
	done, err := workTogether(all, 2*time.Second, 100*time.Millisecond)
	if err != nil {
		return p, err
	}
	p.perSecond = done[0].perSecond(warmUp, 2*time.Second)
	if p.perSecond < 50 { // so few that it matters whether one more was finished in that time
		p.perSecond = 1e9 / p.ns
	}
	if p.perSecond <= 0 {
		return p, fmt.Errorf("%w: nothing was done in two seconds alone", ErrUnsuited)
	}
	if t.alone == nil {
		t.alone = map[work]pace{}
	}
	t.alone[w] = p
	return p, nil
}

// setWork tells programs what to do.
func setWork(all []*Program, w work, p pace) error {
	for _, program := range all {
		if _, err := program.ask(0, "size %.0f %.0f %d", p.rounds, p.ns, w.nodes); err != nil {
			return err
		}
	}
	return nil
}

// warmUp is how long programs work before it counts: queues fill, clocks rise, and slices
// are set at the first launches.
const warmUp = 500 * time.Millisecond

// progress is what a program got done.
type progress struct {
	gap, first time.Duration // the longest time without anything finished; until the first
	step       time.Duration
	counts     []float64 // kernels, in each step
}

// perSecond returns the rate in a part of the time.
func (p progress) perSecond(from, until time.Duration) float64 {
	sum := 0.0
	for i := int(from / p.step); i < int(until/p.step) && i < len(p.counts); i++ {
		sum += p.counts[i]
	}
	return sum / (until - from).Seconds()
}

// beginTogether tells programs to work from one instant on, and returns when that is.
func beginTogether(all []*Program, length, step time.Duration) (at int64, err error) {
	if at, err = instant(100 * time.Millisecond); err != nil {
		return 0, err
	}
	for _, p := range all {
		p.Tell("work %d %d %d", at, length.Milliseconds(), step.Milliseconds())
	}
	return at, nil
}

// readProgress reads what programs answer when they have worked.
func readProgress(all []*Program, step time.Duration) (out []progress, err error) {
	for _, p := range all {
		n, err := p.numbers(3)
		if err != nil {
			return nil, err
		}
		out = append(out, progress{time.Duration(n[0]), time.Duration(n[1]), step, n[2:]})
	}
	return out, nil
}

// workTogether has programs work at the same time.
func workTogether(all []*Program, length, step time.Duration) ([]progress, error) {
	if _, err := beginTogether(all, length, step); err != nil {
		return nil, err
	}
	return readProgress(all, step)
}

// shared is what jobs got of the device, side by side.
type shared struct {
	shares   []float64 // per cent of what all got
	together float64   // per cent of what one alone gets
	gaps     []time.Duration
}

// ratios returns rates as what each is of their sum, and the sum as what it is of one
// alone.
func ratios(rates []float64, alone float64) (s shared) {
	sum := 0.0
	for _, rate := range rates {
		sum += rate
	}
	for _, rate := range rates {
		s.shares = append(s.shares, 100*rate/math.Max(sum, 1e-9))
	}
	s.together = 100 * sum / alone
	return s
}

// share has jobs do the same work side by side for a time.
func (t *Trial) share(w work, length time.Duration, jobs ...sharer) (shared, error) {
	p, err := t.pace(w)
	if err != nil {
		return shared{}, err
	}
	inner := t.newTrial(t.quick)
	defer inner.close()
	out, err := inner.shareJobs(w, p, length, jobs)
	if err != nil {
		err = fmt.Errorf("%w %s", err, inner.logs())
	}
	return out, err
}

func (t *Trial) shareJobs(w work, p pace, length time.Duration, jobs []sharer) (shared, error) {
	var at []*Program
	var owner []int // by program: its job
	for i, j := range jobs {
		all, err := t.join(j, "init", t.native("busy")...)
		if err != nil {
			return shared{}, err
		}
		if err := setWork(all, w, p); err != nil {
			return shared{}, err
		}
		for _, program := range all[:len(all)-j.idle] {
			at, owner = append(at, program), append(owner, i)
		}
	}
	done, err := workTogether(at, warmUp+length, 100*time.Millisecond)
	if err != nil {
		return shared{}, err
	}
	rates, gaps := make([]float64, len(jobs)), make([]time.Duration, len(jobs))
	for i, d := range done {
		rates[owner[i]] += d.perSecond(warmUp, warmUp+length)
		gaps[owner[i]] = max(gaps[owner[i]], d.gap)
	}
	out := ratios(rates, p.perSecond)
	out.gaps = gaps
	return out, t.enforced()
}

// checkShares compares shares with what was asked for: within so many points.
func (t *Trial) checkShares(what string, got shared, points float64, want ...float64) error {
	sum := 0.0
	for _, w := range want {
		sum += w
	}
	worst := 0.0
	var asked, had []string
	for i, w := range want {
		worst = math.Max(worst, math.Abs(got.shares[i]-100*w/sum))
		asked, had = append(asked, fmt.Sprintf("%.4g", 100*w/sum)), append(had, fmt.Sprintf("%.1f", got.shares[i]))
	}
	t.note("%s%s: %s, together %.1f %%", what, strings.Join(asked, "/"), strings.Join(had, "/"), got.together)
	t.record("worst_milli", int64(1000*worst))
	t.record("together_milli", int64(1000*got.together))
	if worst > points {
		return fmt.Errorf("%s%s: a job had %.1f points too much or too little", what, strings.Join(asked, "/"), worst)
	}
	return nil
}

// setCompute changes a job's share while it runs, with the command that people use.
func (t *Trial) setCompute(job string, share int) error {
	cmd := exec.Command(t.Bundle.file("ration"), "limit", job, "--compute", fmt.Sprint(share))
	cmd.Env = t.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("changing a share: %w: %s", err, out)
	}
	return nil
}
