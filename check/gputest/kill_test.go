package gputest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/humanfmt"
)

// TestKill kills programs, and checks that what they held comes back, and only then.
func TestKill(t *testing.T) {
	check(t, "storm", 17*gib, nil, func(t *trial) { t.storm(10, 16*gib) })
	check(t, "fork-child", 9*gib, nil, func(t *trial) { t.killParent(6*gib, 8*gib) })
	check(t, "while-starting", 17*gib, nil, func(t *trial) { t.killStarting(8, 16*gib) })
}

// killAndForget kills a program that is no longer one of the trial then.
func (t *trial) killAndForget(p *program) {
	p.kill()
	p.Close()
	t.programs = slices.DeleteFunc(t.programs, func(other *program) bool { return p == other })
}

// storm lets programs allocate and free while one after the other is killed and
// replaced. Then the others become idle, and the two counts must agree. Then all are
// killed, and nothing may be left.
func (t *trial) storm(n int, limit uint64) {
	t.open(limit)
	o := t.observeCounts()
	defer o.stop()
	for range n {
		t.startChurning(limit)
	}
	length, kills := short(t, 2*time.Second, 20*time.Second), 0
	for began := time.Now(); time.Since(began) < length; kills++ {
		time.Sleep(rand.N(300 * time.Millisecond))
		t.killAndForget(t.programs[rand.IntN(len(t.programs))])
		t.startChurning(limit)
	}
	started := t.endChurning()
	t.must(o.stop())
	all := t.compare("rest")
	expect.Must(t, len(all) == started, len(all), "processes use memory, and", started, "have a context")
	for _, p := range t.programs {
		p.kill()
	}
	// What a killed process held stays counted until the driver has released it.
	t.checkObserved(o, n)
	t.checkNothingLeft()
	t.note("%d killed; %s", kills+len(t.programs), o.observed(limit))
	t.noteDifference()
}

// startChurning starts a program that allocates and frees until its next command.
func (t *trial) startChurning(limit uint64) {
	p := t.start(nil, t.native("workload")...)
	p.Tell("init")
	p.Tell("churn %d %d %d 500", rand.Uint32()>>8, limit/4, 256*mib)
}

// endChurning has all programs keep what they have and wait. It returns how many of
// them have a context: some were refused theirs, which is an ordinary out of memory.
func (t *trial) endChurning() (started int) {
	t.tellAll("info")
	for _, p := range t.programs {
		if strings.HasPrefix(p.line(), "ok") { // the answer to init
			started++
		}
		p.line() // to churn
		p.line() // to info
	}
	return started
}

// killParent kills a program that has a fork child. The child has the driver's files, with
// which the driver keeps the memory, so ration counts it until the child has ended.
func (t *trial) killParent(held, limit uint64) {
	t.open(limit)
	parent := t.start(nil, t.native("forker", strconv.FormatUint(held, 10), "outlived")...)
	child := int(parent.at("holding").bytes(t, "child"))
	t.compare("holding")
	before := t.free()
	parent.kill()
	// Half of it is more than anything else takes or gives meanwhile.
	kept := t.free() < before+held/2
	other := t.start(nil, t.native("workload")...)
	other.ask(0, "init")
	refused := other.refused(limit - held)
	expect.Must(t, !kept || refused,
		"the driver has what pid", parent.PID(), "held while its child, pid", child, "lives, and ration granted it again")
	if !kept {
		t.note("this driver frees a process's memory although a fork child has its files")
	}
	t.must(unix.Kill(child, unix.SIGKILL))
	expect.Must(t, eventually(func() bool { return !other.refused(limit - held) }),
		"what pid", parent.PID(), "held was not returned when its child, pid", child, "had ended")
	if free, want := t.free(), before+held/2-(limit-held); free < want {
		t.Fatalf("ration returned what pid %d held, and the driver has %s free, not %s", parent.PID(), humanfmt.Bytes(free), humanfmt.Bytes(want))
	}
	t.note("counted until the fork child had ended")
	other.kill()
	t.checkNothingLeft()
}

// free returns how many bytes of the device are free by the driver's count.
func (t *trial) free() uint64 {
	bytes, err := t.driver.Free(t.device)
	t.must(err)
	return bytes
}

// refused has a program allocate so many bytes, and returns whether it was refused.
func (p *program) refused(bytes uint64) bool {
	p.Tell("alloc %d", bytes)
	line := p.line()
	word, _, _ := strings.Cut(line, " ")
	expect.Must(p.t, word == "ok" || word == "oom", "pid", p.PID(), "answered", line)
	return word == "oom"
}

// killStarting kills programs at random moments of their start, when the driver and
// the library do most of their work.
func (t *trial) killStarting(n int, limit uint64) {
	t.open(limit)
	// One program stays alive, so that the job does.
	stayer := t.start(nil, t.native("workload")...)
	stayer.ask(0, "init")
	rounds := short(t, 1, 6)
	for range rounds {
		t.startAll(n, nil, t.native("workload")...)
		some := slices.Clone(t.programs[1:])
		for _, p := range some {
			p.Tell("init")
		}
		for _, p := range some {
			time.Sleep(rand.N(200 * time.Millisecond))
			t.killAndForget(p)
		}
	}
	var all []account
	if !eventually(func() bool {
		all = t.accounts()
		return len(all) == 1 && t.started(all[0].pid)
	}) {
		t.Fatalf("%d processes use memory, and only one is alive", len(all))
	}
	t.compare("rest")
	t.note("%d killed while they started", rounds*n)
	t.noteDifference()
	stayer.kill()
	t.checkNothingLeft()
}
