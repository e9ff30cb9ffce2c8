package scenario

import (
	"fmt"
	"time"

	"ration/check/harness/cuda"
	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
)

// Bounds of the demo's limit.
const (
	DemoDevice   = 80 * limit.GiB // memory of the stand-in device
	DemoMinLimit = limit.MiB
)

const (
	workers = 8
	stopped = 2           // index of the worker that is stopped
	hog     = workers - 1 // index of the worker that is killed

	churnEvery = 4 * time.Millisecond  // how often a worker allocates or frees: slow enough to watch
	readEvery  = 50 * time.Microsecond // pause of the observer: the demo must not use a whole CPU
)

// DemoReport is the outcome of a demo.
type DemoReport struct {
	Limit    uint64   `json:"limit_bytes"`
	Workers  int      `json:"workers"`
	Context  uint64   `json:"context_bytes"`  // what the context of each process takes
	Requests int64    `json:"requests"`       // of the workers that were not killed
	Refused  int64    `json:"refused"`        // of those requests; all of them had to be granted
	Slowest  int64    `json:"slowest_ns"`     // the longest driver call of a process that was not stopped
	Greedy   Request  `json:"greedy"`         // of the program that asked for too much
	Stopped  Stop     `json:"stopped"`        // the worker that was stopped
	Killed   Kill     `json:"killed"`         // the hog
	Readings int64    `json:"readings"`       // of the observer
	Exceeded int64    `json:"limit_exceeded"` // readings above the limit
	Most     uint64   `json:"most_bytes"`     // the highest read value, or the region's own peak
	Held     Accounts `json:"held"`           // while the workers held their memory
	End      Accounts `json:"end"`            // after the workers ended
	SMI      SMI      `json:"fake_smi"`       // while the workers held their memory
	Agree    bool     `json:"accounts_agree"` // everything is as ration promises
}

// Request is a request for memory, and its answer.
type Request struct {
	PID     int    `json:"pid"`
	Asked   uint64 `json:"asked"` // bytes
	Refused bool   `json:"refused"`
	Held    uint64 `json:"held"` // bytes, by all processes at that moment
	Why     string `json:"why"`
}

// Stop describes what happened while a worker was stopped.
type Stop struct {
	PID     int   `json:"pid"`
	For     int64 `json:"for_ns"`
	Changes int64 `json:"changes"` // of the device's usage by the other workers, at least
}

// SMI is the output of nvidia-smi.
type SMI struct {
	Inside  cuda.Memory `json:"inside"` // the job
	Outside cuda.Memory `json:"outside"`
}

// demo is a demo in progress.
type demo struct {
	*stage
	*display
	DemoReport
	pause time.Duration // between two parts, for a person to watch
}

// Demo runs the demo with a limit in bytes, and shows it on the screen. quick leaves out most of the
// pauses. The error matches embedded.ErrNotBuilt if this ration was built without its library.
func Demo(limit uint64, quick bool, screen Screen) (DemoReport, error) {
	d := &demo{DemoReport: demoReport(limit), pause: 2 * time.Second}
	if quick {
		d.pause = 100 * time.Millisecond
	}
	err := onStage(fmt.Sprintf("h100:%d", uint64(DemoDevice)), d.Limit, d.Context, func(s *stage) {
		d.stage, d.display = s, &display{Screen: screen, limit: d.Limit, began: time.Now()}
		defer d.close()
		d.title("%d processes share %s of a stand-in device. No GPU is needed.\n"+
			"They are ordinary CUDA programs with libration.so preloaded; fakegpu is their driver.", workers, humanfmt.Bytes(d.Limit))
		if screen.Live {
			d.title("From another terminal: ration ps --region %s", d.machine.Region)
		}
		d.share()
		for _, part := range []func(){d.refuse, d.stop, d.killHog, d.compare} {
			time.Sleep(d.pause)
			part()
		}
	})
	return d.DemoReport, err
}

// demoReport returns the report of a demo that has not begun.
func demoReport(limit uint64) DemoReport {
	limit = limit / abi.Unit * abi.Unit
	return DemoReport{Limit: limit, Workers: workers, Context: limit / 160 / abi.Unit * abi.Unit}
}

// plan returns the name of worker i and how many bytes it holds, including its context: low at the
// start, then between low and high. All maximums together leave space for one more context, so that
// no worker is ever refused.
func (r DemoReport) plan(i int) (name string, low, high uint64) {
	if i == hog {
		return "hog", r.part(280), r.part(300)
	}
	return fmt.Sprintf("worker-%d", i+1), r.part(65), r.part(99)
}

// part returns the given thousandths of the limit, in whole units.
func (r DemoReport) part(thousandths uint64) uint64 {
	return r.Limit / abi.Unit * thousandths / 1000 * abi.Unit
}

// share starts the workers, and has them allocate and free.
func (d *demo) share() {
	d.workers = d.start(workers)
	_, slowest := attach(d.workers...)
	d.observe(readEvery)
	answers := d.tell(1, func(i int) string {
		_, low, _ := d.plan(i)
		return fmt.Sprintf("alloc %d", low-d.Context)
	})
	for i, p := range d.workers {
		name, low, high := d.plan(i)
		if answers[i].OutOfMemory {
			need(fmt.Errorf("%s was refused the memory it starts with", name))
		}
		d.add(name, p.PID())
		p.Tell("churn %d %d %d %d", i+1, high-low, max((high-low)/16, abi.Unit), churnEvery.Microseconds())
	}
	d.live(d.region)
	d.say("%d processes started at once and were ready within %s; one of them made the region.", workers, humanfmt.Duration(slowest))
}

// namedGuest starts one more program, which holds only its context, and shows it.
func (d *demo) namedGuest(name string) *cuda.Program {
	p := d.guest()
	d.add(name, p.PID())
	return p
}

// refuse makes a guest request more than is free.
func (d *demo) refuse() {
	greedy, ask := d.namedGuest("greedy"), d.part(400)
	got := must(greedy.Do(within, "alloc %d", ask))
	d.Greedy = Request{PID: greedy.PID(), Asked: ask, Refused: got.OutOfMemory}
	d.Slowest = max(d.Slowest, int64(got.Slowest))
	if got.OutOfMemory {
		d.explain()
		d.say("greedy was refused with CUDA_ERROR_OUT_OF_MEMORY: it %s.", d.Greedy.Why)
	} else {
		d.say("greedy asked for %s and got it, which is wrong.", humanfmt.Bytes(ask))
	}
	quit(greedy)
}

// explain reads in the region why greedy was refused.
func (d *demo) explain() {
	for _, refusal := range must(d.region.Refusals()) {
		if refusal.PID != d.Greedy.PID {
			continue
		}
		var top []humanfmt.Holder
		for _, h := range refusal.Top {
			top = append(top, humanfmt.Holder{Name: d.name(h.PID), Bytes: h.Bytes})
		}
		d.Greedy.Held, d.Greedy.Why = refusal.Held, humanfmt.Refusal(refusal.Asked, refusal.Held, refusal.Limit, top)
		return
	}
	need(fmt.Errorf("pid %d was refused, and the region does not say why", d.Greedy.PID))
}

// stop stops a worker at a random instruction for a while, and continues it.
func (d *demo) stop() {
	p := d.workers[stopped]
	name, _, _ := d.plan(stopped)
	need(p.Stop())
	from, before := time.Now(), d.usage.Changes()
	d.mark(p.PID(), "stopped")
	d.say("%s is stopped with SIGSTOP, at an arbitrary instruction.", name)
	time.Sleep(d.pause)
	d.Stopped = Stop{p.PID(), int64(time.Since(from)), d.usage.Changes() - before}
	need(p.Continue())
	d.mark(p.PID(), "")
	d.say("%s goes on after %s. The others did not wait: at least %s changes meanwhile.", name,
		humanfmt.Duration(time.Duration(d.Stopped.For)), humanfmt.Count(d.Stopped.Changes))
}

// killHog kills the hog, and makes a guest request an amount that is free only because the hog is
// dead.
func (d *demo) killHog() {
	heir, victim := d.namedGuest("heir"), d.workers[hog]
	d.workers = d.workers[:hog]
	var got cuda.Answer
	d.Killed, got, _ = d.kill(victim, heir, d.part(300))
	d.Slowest = max(d.Slowest, int64(got.Slowest))
	d.mark(victim.PID(), "killed")
	if got.OutOfMemory {
		need(fmt.Errorf("asking for %d bytes of a dead process: refused with %d of %d granted", d.Killed.Asked, d.region.Used(0), d.Limit))
	}
	d.say("hog is killed with SIGKILL, holding %s. heir asks for %s and has it %s later; no cleanup was needed.",
		humanfmt.Bytes(d.Killed.Held), humanfmt.Bytes(d.Killed.Asked), humanfmt.Duration(time.Duration(d.Killed.After)))
	time.Sleep(d.pause / 2)
	quit(heir)
}

// compare ends the workers' churn, compares the accounts, and lets the workers end.
func (d *demo) compare() {
	for i, a := range d.endWork("info") {
		d.Requests, d.Refused = d.Requests+a.Numbers[0], d.Refused+a.Numbers[1]
		if i != stopped { // its longest call includes the time that it was stopped
			d.Slowest = max(d.Slowest, int64(a.Slowest))
		}
	}
	d.Held = d.accounts()
	d.SMI = SMI{must(d.machine.SMI(true)), must(d.machine.SMI(false))}
	time.Sleep(d.pause / 4)
	quit(d.workers...)
	d.End = d.accounts()
	need(d.usage.Stop())
	d.Readings, d.Exceeded, d.Most = d.usage.Readings, d.usage.Exceeded, max(d.usage.Most, d.region.Peak(0))
	const living = workers - 1
	held := d.Held.agree() && d.Held.Processes == living && d.Held.Contexts == living*d.Context
	end := d.End == Accounts{}
	limit := d.Exceeded == 0 && d.Most <= d.Limit && d.Refused == 0 && d.Greedy.Refused
	smi := d.SMI.Inside.Total == d.Limit>>20 && d.SMI.Inside.Used == d.Held.Granted>>20
	d.Agree = held && end && limit && smi
}
