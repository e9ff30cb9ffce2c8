package gputest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"ration/check/expect"
	"ration/internal/node"
	"ration/machine"
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
	smallKernel = work{us: 20}
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
	priority   string // as ration run takes it; empty is normal
	native     bool   // no job, but a program by itself
	processes  int    // 0 is one
	idle       int    // processes of it that have a context and no work
	slept      bool   // it did some work, slept and was woken before
	asleep     bool   // it sleeps
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
	if s.priority != "" {
		flags = append(flags, "--priority", s.priority)
	}
	return flags
}

// shareLimit is the memory limit of a sharer: enough for its contexts.
const shareLimit = 12 * gib

// join starts the programs of a sharer, in a job of its own, and has them do one thing
// first. The ones that are to be idle come last.
func (t *trial) join(s sharer, first string, command ...string) (all []*program) {
	t.job.Name, t.flags = "", s.flags()
	if !s.native {
		t.open(shareLimit)
		t.joined = append(t.joined, t.job)
	}
	for range max(s.processes, 1) {
		p := t.start(nil, command...)
		p.ask(0, "%s", first)
		all = append(all, p)
	}
	return all
}

// joinBusy is join for programs that are to do some work.
func (t *trial) joinBusy(s sharer, w work, p pace) []*program {
	all := t.join(s, "init", t.native("busy")...)
	for _, program := range all {
		program.setWork(w, p)
	}
	if s.slept {
		t.beginTogether(all, warmUp, warmUp)
		for _, program := range all {
			program.progress(warmUp)
		}
		t.mustRation("sleep", "--wake", "manual", t.job.Name)
		t.mustRation("wake", t.job.Name)
	}
	if s.asleep {
		t.mustRation("sleep", "--wake", "manual", t.job.Name)
	}
	return all
}

// setWork tells a program what to do.
func (p *program) setWork(w work, alone pace) {
	p.ask(0, "size %.0f %.0f %d", alone.rounds, alone.ns, w.nodes)
}

// pace returns how fast work goes alone. It is measured once for each kind.
func (t *trial) pace(w work) (p pace) {
	if p, found := t.alone[w]; found {
		return p
	}
	t.inside(func(t *trial) {
		all := t.join(sharer{native: true}, "init", t.native("busy")...)
		one := all[0].ask(2, "calibrate %d", w.us)
		p.rounds, p.ns = one[0], one[1]
		all[0].setWork(w, p)
		t.beginTogether(all, 2*time.Second, 100*time.Millisecond)
		p.perSecond = all[0].progress(100*time.Millisecond).perSecond(warmUp, 2*time.Second)
	})
	if p.perSecond < 50 { // so few that it matters whether one more was finished in that time
		p.perSecond = 1e9 / p.ns
	}
	if p.perSecond <= 0 {
		t.Skipf("nothing was done in two seconds alone")
	}
	if t.alone == nil {
		t.alone = map[work]pace{}
	}
	t.alone[w] = p
	return p
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
func (t *trial) beginTogether(all []*program, length, step time.Duration) (at int64) {
	at = t.instant(100 * time.Millisecond)
	for _, p := range all {
		p.Tell("work %d %d %d", at, length.Milliseconds(), step.Milliseconds())
	}
	return at
}

// progress reads what a program answers when it has worked.
func (p *program) progress(step time.Duration) progress {
	n := p.numbers(3)
	return progress{time.Duration(n[0]), time.Duration(n[1]), step, n[2:]}
}

// shared is what jobs got of the device, side by side.
type shared struct {
	shares   []float64 // per cent of what all got
	together float64   // per cent of what one alone gets
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

func (s shared) String() string {
	return fmt.Sprintf("%s, together %.1f %%", slashed("%.1f", s.shares), s.together)
}

func slashed(format string, all []float64) string {
	var out []string
	for _, p := range all {
		out = append(out, fmt.Sprintf(format, p))
	}
	return strings.Join(out, "/")
}

// share has jobs do the same work side by side for a time.
func (t *trial) share(w work, length time.Duration, jobs ...sharer) (out shared) {
	p := t.pace(w)
	t.inside(func(t *trial) {
		var at []*program
		var owner []int // by program: its job
		for i, j := range jobs {
			all := t.joinBusy(j, w, p)
			for _, program := range all[:len(all)-j.idle] {
				at, owner = append(at, program), append(owner, i)
			}
		}
		t.beginTogether(at, warmUp+length, 100*time.Millisecond)
		rates := make([]float64, len(jobs))
		for i, program := range at {
			rates[owner[i]] += program.progress(100*time.Millisecond).perSecond(warmUp, warmUp+length)
		}
		out = ratios(rates, p.perSecond)
		t.enforced()
	})
	return out
}

// enforced checks that every process of the trial's jobs has its slice.
func (t *trial) enforced() {
	for _, j := range t.joined {
		s := node.ReadJob(j, node.Options{ReadOnly: true})
		t.must(s.Err())
		for _, p := range s.Processes {
			for _, h := range p.Holdings {
				if h.Compute != nil {
					expect.Must(t, h.Compute.State != machine.NotEnforced, "the share of pid", p.PID, "is not enforced", h.Compute.Reason)
				}
			}
		}
	}
}

// checkShares compares shares with what was asked for: within so many points.
func (t *trial) checkShares(what string, got shared, points float64, want ...float64) {
	wanted := ratios(want, 100).shares
	worst := 0.0
	for i, w := range wanted {
		worst = math.Max(worst, math.Abs(got.shares[i]-w))
	}
	t.note("%s%s: %v", what, slashed("%.4g", wanted), got)
	if worst > points {
		t.Fatalf("%s%s: a job had %.1f points too much or too little", what, slashed("%.4g", wanted), worst)
	}
}

// checkCap compares what a job had with its cap, in per cent of the device.
func (t *trial) checkCap(most int, had float64) {
	t.note("≤%d: %.1f", most, had)
	if math.Abs(had-float64(most)) > 2 {
		t.Fatalf("with a cap of %d %% a job had %.1f %%", most, had)
	}
}

// served is how long a small kernel took beside busy programs, and what these got done.
type served struct {
	median, high time.Duration // the 99th percentile
	busy         shared
}

func (s served) String() string {
	return fmt.Sprintf("a small kernel %v, 99th percentile %v; the others %v", s.median, s.high, s.busy)
}

// besideBusy has one program launch a small kernel now and then beside n jobs that are busy with some work.
func (t *trial) besideBusy(n int, work work, busy, small sharer) (out served) {
	const step = 100 * time.Millisecond
	length := short(t, time.Second, 8*time.Second)
	alone, p := t.pace(work), t.pace(smallKernel)
	t.inside(func(t *trial) {
		var all []*program
		for range n {
			all = append(all, t.joinBusy(busy, work, alone)...)
		}
		one := t.joinBusy(small, smallKernel, p)[0]
		at := t.beginTogether(all, 2*warmUp+length, step)
		one.ask(3, "latency %d %d", at, warmUp.Milliseconds()) // from here on the others know of it
		took := one.ask(3, "latency %d %d", at+int64(2*warmUp), length.Milliseconds())
		out.median, out.high = time.Duration(took[0]), time.Duration(took[1])
		var rates []float64
		for _, program := range all {
			rates = append(rates, program.progress(step).perSecond(2*warmUp, 2*warmUp+length))
		}
		out.busy = ratios(rates, alone.perSecond)
		t.enforced()
	})
	return out
}
