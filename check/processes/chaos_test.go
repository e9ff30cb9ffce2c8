package processes

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
)

const (
	chaosWorkers = 12
	chaosDevices = 3
	chaosLimit   = 4 * mib
	chaosEvents  = 150 // in a round; about two thirds of them are kills
)

// chaos is one round: workers that churn and reap are killed, stopped and continued at
// random, while an operator changes limits, and the job is put to sleep and woken.
type chaos struct {
	t        *testing.T
	random   *rand.Rand
	mix      impls
	path     string
	observer *observing
	naps     *naps
	operator *worker
	workers  [chaosWorkers]*worker
	stopped  [chaosWorkers]bool
	started  int
	kills    int
	longest  time.Duration // operation of a worker that lived to the end
}

// Kills at random moments, thousands of them under -stress, never make the limit
// exceeded, a byte lost, a slot unusable or a process wait.
func TestChaos(t *testing.T) {
	walkMix(t, func(t *testing.T, mix impls) {
		random := random(t)
		kills, slept, longest := 0, 0, time.Duration(0)
		begin := time.Now()
		for round := 0; round < rounds(2) || time.Since(begin) < *stress; round++ {
			c := &chaos{t: t, random: random, mix: mix, path: newPath(t)}
			c.begin()
			for range chaosEvents {
				c.event()
			}
			c.end()
			kills, slept, longest = kills+c.kills, slept+c.naps.slept, max(longest, c.longest)
			expect.Must(t, !t.Failed(), "in round", round)
		}
		expect.True(t, slept > 0, "the job never slept")
		t.Logf("%d kills, %d sleeps; the longest operation of a survivor took %v", kills, slept, longest)
	})
}

func (c *chaos) begin() {
	c.t.Helper()
	c.operator = start(c.t, c.mix, 0)
	c.operator.OK("open %s%s", c.path, limitFields(chaosLimit, chaosLimit, chaosLimit))
	c.observer = observe(c.t, c.path, chaosDevices, chaosLimit)
	c.naps = startNaps(c.t, c.path, c.random.Uint64())
	for i := range c.workers {
		c.replace(i)
	}
}

// replace starts a worker in place of one that was killed, and does not wait for it:
// it may be killed before it has attached.
func (c *chaos) replace(i int) {
	c.t.Helper()
	w := c.startWorker(i)
	c.started++
	c.workers[i], c.stopped[i] = w, false
	w.Tell("open %s", c.path)
	w.Tell("claim worker-%d", c.started)
	devices := []string{"0", "1", "2", "0,1,2"}[c.random.IntN(4)]
	switch c.random.IntN(6) {
	case 0:
		w.Tell("reaper")
	case 1, 2:
		w.Tell("threads %d churn %s %d %d", 2+c.random.IntN(3), devices, c.random.IntN(1e6), chaosLimit/8)
	default:
		w.Tell("churn %s %d %d", devices, c.random.IntN(1e6), chaosLimit/4)
	}
}

// startWorker starts the process of worker i. Half of the workers that will not see the
// end of the round die by themselves, or stop, at a failpoint: random kills hit such a
// point once in a thousand times.
func (c *chaos) startWorker(i int) *worker {
	c.t.Helper()
	if i%4 != 0 {
		return start(c.t, c.mix, c.started)
	}
	point := abi.ClaimLocked + abi.Failpoint(c.random.IntN(int(abi.ReapFreed-abi.ClaimLocked)+1))
	mode := []string{"kill", "kill", "stop"}[c.random.IntN(3)]
	return faulty(c.t, c.mix, c.started, point, 1+c.random.IntN(500), mode)
}

// event kills, stops or continues a worker, or changes a limit.
func (c *chaos) event() {
	c.t.Helper()
	i := c.random.IntN(chaosWorkers)
	switch n := c.random.IntN(12); {
	case n < 8:
		c.workers[i].Kill() // a stopped one as well
		c.kills++
		c.replace(i)
	case n < 10:
		if c.stopped[i] {
			c.workers[i].Continue()
		} else {
			c.workers[i].Stop()
		}
		c.stopped[i] = !c.stopped[i]
	default:
		// Never above the observer's ceiling.
		c.operator.OK("limit %d %d", i%chaosDevices, chaosLimit>>c.random.IntN(3))
	}
}

// end kills half of the workers, and checks what is left.
func (c *chaos) end() {
	t := c.t
	t.Helper()
	for i, w := range c.workers {
		if c.stopped[i] {
			w.Continue()
		}
		if i%2 == 0 {
			w.Kill()
			c.kills++
		}
	}
	for d := range chaosDevices {
		c.operator.OK("limit %d %d", d, chaosLimit)
	}
	c.naps.end()
	var living []*worker
	for i, w := range c.workers {
		if i%2 == 0 {
			continue
		}
		w.answers(3) // to open, claim and its work
		c.longest = max(c.longest, time.Duration(w.OK("stop").Int("longest")))
		living = append(living, w)
	}
	for i, w := range living {
		w.OK("charge 0 data %d", piece)
		w.OK("charge %d module %d", i%chaosDevices, piece)
	}
	c.observer.mustHold(t)
	c.operator.OK("reap")
	used := balanced(t, c.path)
	sum := uint64(0)
	for _, bytes := range used {
		sum += bytes
	}
	want := uint64(len(living) * 2 * piece)
	expect.Equal(t, sum, want, used, "bytes are granted, but", len(living), "processes hold")
	// All that is free is granted, and not one unit more.
	c.operator.OK("claim operator")
	for d := range chaosDevices {
		c.operator.OK("charge %d data %d", d, chaosLimit-used[d])
		c.operator.Ask("charge %d data 1", d).want("refused", "a unit beyond the limit")
	}
	expect.Equal(t, strings.Count(c.operator.OK("processes").String(), ":dead"), 0, "dead processes still have slots")
	c.operator.Ask("claims %d", abi.FenceSlot-len(living)-1).want("ok", "claiming all other slots")
	finish(t, c.path, append(living, c.operator)...)
}
