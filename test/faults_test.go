package test

import (
	"fmt"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/test/harness"
)

// play is a scene on the stage.
type play struct {
	t    *testing.T
	crew harness.Crew
	path string
	cast map[string]*harness.Worker
}

// eachFault plays every point's scene for every pass, with the victim dying or
// stopping there. A point that no scene reaches fails the test.
func eachFault(t *testing.T, mode string, test func(p *play, s scene, n int)) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		for p := abi.FailpointNone + 1; p < abi.Failpoints; p++ {
			passes := sceneOf(p, "").passes
			if passes == 0 {
				t.Errorf("no scene leads to %v", p)
			}
			for n := 1; n <= passes; n++ {
				t.Run(fmt.Sprintf("%v:%d", p, n), func(t *testing.T) {
					path := newPath(t)
					show := &play{t: t, crew: crew, path: path, cast: map[string]*harness.Worker{}}
					show.cast["v"] = harness.Start(t, crew.Of(0).Fault, harness.Fault(p, n, mode))
					show.cast["a"] = start(t, crew, 1)
					s := sceneOf(p, path)
					if !s.first {
						show.enter()
					}
					if !show.run(s) {
						t.Fatalf("%v was not passed %d times", p, n)
					}
					test(show, s, n)
				})
			}
		}
	})
}

// enter opens the region for the survivor.
func (p *play) enter() {
	p.t.Helper()
	p.cast["a"].OK("open %s%s", p.path, bring(sceneLimit, sceneLimit, sceneLimit))
	p.cast["a"].OK("claim survivor")
}

// run carries out the steps. It reports true when the victim has met its fate,
// and leaves out what would follow.
func (p *play) run(s scene) bool {
	p.t.Helper()
	fate := p.cast["v"].Fate()
	for _, step := range s.steps {
		w := p.cast[step.who]
		switch {
		case step.who == "v":
			w.Send("%s", step.order)
			select {
			case <-fate:
				return true
			case _, alive := <-w.Heard(): // an answer; refusals among them
				if !alive {
					return true
				}
			case <-time.After(harness.Bound):
				p.t.Fatalf("%s: neither answer nor fate", step.order)
			}
		case step.order == "kill":
			w.Kill()
		default:
			if w == nil {
				w = start(p.t, p.crew, len(p.cast))
				p.cast[step.who] = w
			}
			w.OK("%s", step.order)
		}
	}
	return false
}

// A process that is killed at any point of any protocol costs nobody anything:
// the next one who needs them has all the bytes, and all slots can be used. Its
// last change is still the device's last when somebody looks, or, every other
// time, has been followed by others.
func TestKilledAtEveryPoint(t *testing.T) {
	eachFault(t, "kill", func(p *play, s scene, n int) { p.bury(s, n%2 == 0) })
}

// bury lets the survivor find the victim dead, and take what it held.
func (p *play) bury(s scene, followed bool) {
	p.t.Helper()
	p.cast["v"].Kill()
	a := p.cast["a"]
	if s.first {
		p.enter()
	}
	a.OK("leave")
	a.OK("claim survivor")
	for d := range sceneDevices {
		if followed {
			a.OK("charge %d data 1", d)
			a.OK("return %d data 1", d)
		}
	}
	for d := range sceneDevices {
		a.OK("charge %d data %d", d, sceneLimit)
		if got := a.OK("used %d", d).Int("bytes"); got != sceneLimit {
			p.t.Errorf("device %d: %d bytes granted where the survivor holds %d", d, got, sceneLimit)
		}
	}
	a.OK("reap")
	agree(p.t, p.path)
	p.t.Logf("the longest operation took %v", time.Duration(a.OK("stop").Int("longest")))
	if got := a.Ask("claims %d", abi.Slots-1); got.Verdict() != "ok" {
		p.t.Errorf("claiming every slot but its own: %s", got)
	}
	a.Quit()
	pristine(p.t, p.path)
}

// A process that is stopped there keeps what it holds and blocks nobody; when it
// is continued it finishes what it was about, and the books agree.
func TestStoppedAtEveryPoint(t *testing.T) {
	eachFault(t, "stop", func(p *play, s scene, _ int) {
		a := p.cast["a"]
		if s.first {
			p.enter()
		}
		a.OK("leave")
		a.OK("claim survivor")
		for d := range sceneDevices {
			a.OK("charge %d data %d", d, sceneLimit-s.holds)
		}
		other := join(p.t, p.crew, 2, p.path)
		if verdict := other.Ask("charge 0 data %d", sceneLimit).Verdict(); verdict != "refused" {
			p.t.Errorf("a charge of the whole limit, most of it held: %s", verdict)
		}
		other.OK("reap")
		took := time.Duration(max(a.OK("stop").Int("longest"), other.OK("stop").Int("longest")))
		p.t.Logf("the longest operation took %v", took)

		v := p.cast["v"]
		v.Thaw()
		if got := v.Answer(); got.Verdict() == "error" {
			p.t.Errorf("continued: %s", got)
		}
		agree(p.t, p.path)
		for _, w := range []*harness.Worker{v, a, other} {
			w.Quit()
		}
		pristine(p.t, p.path)
	})
}

// Initialisers that die one after the other, each at another point, while more
// of them race, leave a region that the last one has whole.
func TestDyingInitialisers(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		for range rounds(5) {
			path := newPath(t)
			gate := harness.NewGate(t)
			var victims []*harness.Worker
			for p := abi.InitOpened; p <= abi.InitDone; p++ {
				w := harness.Start(t, crew.Of(int(p)).Fault, harness.Fault(p, 1, "kill"), gate.At())
				w.Send("gate")
				w.Send("open %s 0=%d", path, mib)
				victims = append(victims, w)
			}
			survivors := make([]*harness.Worker, 4)
			for i := range survivors {
				survivors[i] = start(t, crew, i, gate.At())
				survivors[i].Send("gate")
			}
			gate.Open()
			for _, w := range survivors {
				w.Answer()
				w.OK("open %s 0=%d", path, mib)
				w.OK("claim survivor")
			}
			for _, w := range victims {
				w.Kill() // those that came too late for their point live still
			}
			survivors[0].OK("charge 0 data %d", mib)
			for _, w := range survivors {
				w.Quit()
			}
			pristine(t, path)
		}
	})
}
