package test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/test/harness"
)

const (
	chaosWorkers = 12
	chaosDevices = 3
	chaosLimit   = 4 * mib
	chaosEvents  = 150 // in a round; about two thirds of them are kills
)

// chaos is one round: workers that churn and reap, and an operator, while
// somebody kills, stops and continues them at random.
type chaos struct {
	t        *testing.T
	random   *rand.Rand
	crew     harness.Crew
	path     string
	observer *harness.Observer
	operator *harness.Worker
	workers  [chaosWorkers]*harness.Worker
	frozen   [chaosWorkers]bool
	started  int
	kills    int
	longest  time.Duration
}

// Death at random moments, thousands of them under -stress, never makes the
// limit pass, a byte leak or a slot unusable, and never keeps anybody waiting.
func TestChaos(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		random := random(t)
		kills, longest := 0, time.Duration(0)
		begin := time.Now()
		for round := 0; round < rounds(2) || time.Since(begin) < *stress; round++ {
			c := &chaos{t: t, random: random, crew: crew, path: newPath(t)}
			c.begin()
			for range chaosEvents {
				c.event()
			}
			c.end()
			kills, longest = kills+c.kills, max(longest, c.longest)
			if t.Failed() {
				t.Fatalf("in round %d", round)
			}
		}
		t.Logf("%d kills; the longest operation of a survivor took %v", kills, longest)
	})
}

func (c *chaos) begin() {
	c.t.Helper()
	limits := bring(chaosLimit, chaosLimit, chaosLimit)
	c.operator = start(c.t, c.crew, 0)
	c.operator.OK("open %s%s", c.path, limits)
	c.observer = harness.Observe(c.t, c.path, chaosDevices, chaosLimit)
	for i := range c.workers {
		c.replace(i)
	}
}

// replace starts a worker in place of one that is gone, and does not wait for
// anything: it may be killed before it has come to life.
func (c *chaos) replace(i int) {
	c.t.Helper()
	w := c.recruit(i)
	c.started++
	c.workers[i], c.frozen[i] = w, false
	w.Send("open %s", c.path)
	w.Send("claim worker-%d", c.started)
	devices := []string{"0", "1", "2", "0,1,2"}[c.random.IntN(4)]
	switch c.random.IntN(6) {
	case 0:
		w.Send("reaper")
	case 1, 2:
		w.Send("threads %d churn %s %d %d", 2+c.random.IntN(3), devices, c.random.IntN(1e6), chaosLimit/8)
	default:
		w.Send("churn %s %d %d", devices, c.random.IntN(1e6), chaosLimit/4)
	}
}

// recruit starts the process of a worker. Every other one that will not see the
// end of the round dies by itself, or stops, at a point of a protocol: where
// killing at random comes once in a thousand times.
func (c *chaos) recruit(i int) *harness.Worker {
	c.t.Helper()
	if i%4 != 0 {
		return start(c.t, c.crew, c.started)
	}
	point := abi.ClaimLocked + abi.Failpoint(c.random.IntN(int(abi.ReapFreed-abi.ClaimLocked)+1))
	mode := []string{"kill", "kill", "stop"}[c.random.IntN(3)]
	return harness.Start(c.t, c.crew.Of(c.started).Fault, harness.Fault(point, 1+c.random.IntN(500), mode))
}

// event is one blow of fate.
func (c *chaos) event() {
	c.t.Helper()
	i := c.random.IntN(chaosWorkers)
	switch n := c.random.IntN(12); {
	case n < 8:
		c.workers[i].Kill() // a stopped one as well
		c.kills++
		c.replace(i)
	case n < 10:
		if c.frozen[i] {
			c.workers[i].Thaw()
		} else {
			c.workers[i].Freeze()
		}
		c.frozen[i] = !c.frozen[i]
	default:
		// Never above what the observer was told, so that it need not be told.
		c.operator.OK("limit %d %d", i%chaosDevices, chaosLimit>>c.random.IntN(3))
	}
}

// end lets half of the workers live, and counts.
func (c *chaos) end() {
	t := c.t
	t.Helper()
	for i, w := range c.workers {
		if c.frozen[i] {
			w.Thaw()
		}
		if i%2 == 0 {
			w.Kill()
			c.kills++
		}
	}
	for d := range chaosDevices {
		c.operator.OK("limit %d %d", d, chaosLimit)
	}
	var living []*harness.Worker
	for i, w := range c.workers {
		if i%2 == 0 {
			continue
		}
		// The answers to open, claim and its work come first.
		for range 3 {
			if a := w.Answer(); a.Verdict() != "ok" {
				t.Errorf("worker %d: %s", i, a)
			}
		}
		c.longest = max(c.longest, time.Duration(w.OK("stop").Int("longest")))
		living = append(living, w)
	}
	for i, w := range living {
		w.OK("charge 0 data %d", piece)
		w.OK("charge %d module %d", i%chaosDevices, piece)
	}
	c.observer.Stop(t)
	c.operator.OK("reap")
	used := agree(t, c.path)
	sum := uint64(0)
	for _, bytes := range used {
		sum += bytes
	}
	if want := uint64(len(living) * 2 * piece); sum != want {
		t.Errorf("%v bytes are granted where %d processes hold %d", used, len(living), want)
	}
	// All that is left can be had, and not one unit more.
	c.operator.OK("claim operator")
	for d := range chaosDevices {
		c.operator.OK("charge %d data %d", d, chaosLimit-used[d])
		if a := c.operator.Ask("charge %d data 1", d); a.Verdict() != "refused" {
			t.Errorf("device %d: a unit beyond the limit: %s", d, a)
		}
	}
	if dead := strings.Count(c.operator.OK("processes").String(), ":dead"); dead != 0 {
		t.Errorf("%d dead processes still have slots", dead)
	}
	if a := c.operator.Ask("claims %d", abi.Slots-len(living)-1); a.Verdict() != "ok" {
		t.Errorf("claiming all other slots: %s", a)
	}
	for _, w := range living {
		w.Quit()
	}
	c.operator.Quit()
	pristine(t, c.path)
}
