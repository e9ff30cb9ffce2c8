package gputest

import (
	"fmt"
	"strconv"
	"testing"

	"ration/check/expect"
	"ration/internal/humanfmt"
)

// TestMakers lets 16 threads make at once what no call tells the size of: modules of 40 MiB, or
// larger stacks. What is granted is within the limit. What is refused exists until it is undone:
// the limit may be exceeded by that for a moment, by one for each process.
func TestMakers(t *testing.T) {
	for _, c := range []struct {
		kind   string
		each   int // things that each thread tries to make
		fit    float64
		others int // processes of the job that are there before, with a context each
	}{
		{"modules", 8, 7.5, 0}, {"modules", 8, 7.5, 1}, {"stacks", 1, 3.5, 0}, {"stacks", 1, 3.5, 1},
	} {
		check(t, fmt.Sprintf("%s-%d", c.kind, c.others+1), 40*gib, nil, func(t *trial) {
			command := t.native("makers", c.kind, "16", strconv.Itoa(c.each), short(t, "3", "10"))
			context, ready, one := t.costs(command)
			t.open(uint64(c.others)*context + ready + uint64(c.fit*float64(one)))
			t.note("a %s takes %s; %.1f fit", c.kind[:len(c.kind)-1], humanfmt.Bytes(one), c.fit)
			t.makeAll(command, c.others, one)
		})
	}
}

// costs runs the program makers by itself, and returns what the driver counts for a
// context, for the program at its first step, and for one thing that it makes.
func (t *trial) costs(command []string) (context, ready, one uint64) {
	t.inside(func(t *trial) {
		p := t.start(nil, t.native("answers", "mipmap")...)
		p.at("ready")
		context = t.listedSum()
		p.kill()
	})
	t.inside(func(t *trial) {
		p := t.start(nil, command...)
		p.at("ready")
		ready = t.listedSum()
		p.Tell("")
		p.at("one")
		one = t.listedSum() - ready
		p.Tell("")
		p.at("none")
		if after := t.listedSum(); after > ready {
			t.note("%s of it stay after it was undone, natively", humanfmt.Bytes(after-ready))
			ready = after
		}
		p.kill()
	})
	return context, ready, one
}

// makeAll runs the program makers in the job, beside so many others, and checks the limit.
func (t *trial) makeAll(command []string, others int, one uint64) {
	for range others {
		t.start(nil, t.native("answers", "mipmap")...).at("ready")
	}
	o := t.observeCounts()
	defer o.stop()
	p := t.start(nil, command...)
	for _, name := range []string{"ready", "one", "none"} {
		p.at(name)
		p.Tell("")
	}
	s := p.at("held")
	t.note("made %s, at most %s, %s refused", s.values["made"], s.values["most"], s.values["refused"])
	t.must(o.stop())
	over := int64(o.mostDriver) - int64(t.limit)
	t.note("at some moment %+d MiB beyond the limit by the driver, in %s readings", over/int64(mib), humanfmt.Count(o.readings))
	t.compare("held")
	t.noteDifference()
	expect.Must(t, over <= int64(one+2*lazyLoad), "the limit was exceeded by", humanfmt.Bytes(uint64(over)), "for a moment")
}

// listed returns the driver's counts for the processes of this trial, in bytes by PID.
func (t *trial) listed() map[int]uint64 {
	t.Helper()
	all, err := t.driver.Processes()
	t.must(err)
	out := map[int]uint64{}
	for _, p := range all {
		if p.Device == t.device && t.started(p.PID) {
			out[p.PID] += p.Used
		}
	}
	return out
}

func (t *trial) listedSum() (sum uint64) {
	t.Helper()
	for _, bytes := range t.listed() {
		sum += bytes
	}
	return sum
}
