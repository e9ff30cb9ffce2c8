// Package demo shows on any machine, without a GPU, what ration does: eight
// processes share the memory of a stand-in device; one asks for too much, one is
// stopped, one is killed; and at the end all accounts are compared.
//
// The processes are CUDA programs that know nothing of ration, with the library
// preloaded. The demo knows of them what any observer could: their PIDs, and what
// the region says about them.
package demo

import (
	"fmt"
	"time"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// Bounds of the limit.
const (
	Device   = 80 * limit.GiB // memory of the stand-in device
	MinLimit = limit.MiB
)

const (
	workers = 8
	hog     = workers - 1 // index of the worker that is killed
	stopped = 2           // index of the worker that is stopped
	within  = time.Minute // a program that has not answered by then hangs

	// readEvery is the observer's pause: the demo must not take a CPU for itself.
	readEvery = 50 * time.Microsecond
)

// run is a demo in progress.
type run struct {
	Report
	machine  cuda.Machine
	pause    time.Duration // between two parts, for a person to look
	display  *display
	outside  *cuda.Program // a program outside the job, which asks the driver
	workers  []*worker
	region   *region.Region // read-only
	observer *observer.Usage
}

// Run runs the demo with a limit in bytes, and shows it on the screen. quick leaves
// out most of the pauses. The error matches embedded.ErrNotBuilt if this ration was
// built without its library.
func Run(limit uint64, quick bool, screen Screen) (Report, error) {
	path, remove, err := job.Scratch()
	if err != nil {
		return Report{}, err
	}
	defer remove()
	r := &run{pause: 2 * time.Second}
	if quick {
		r.pause = 100 * time.Millisecond
	}
	r.Limit, r.Workers = limit/abi.Unit*abi.Unit, workers
	r.Context = r.Limit / 160 / abi.Unit * abi.Unit
	r.machine = cuda.Machine{GPU: "h100:" + fmt.Sprint(uint64(Device)), Region: path, Limit: r.Limit, Context: r.Context}
	if err := r.machine.Unpack(); err != nil {
		return Report{}, err
	}
	if r.outside, err = r.machine.Start(false); err != nil {
		return Report{}, err
	}
	defer r.outside.Close()
	if _, err := r.outside.Do(within, "init"); err != nil {
		return Report{}, err
	}
	r.display = newDisplay(screen, r.Limit)
	defer r.display.close()
	r.display.title("%d processes share %s of a stand-in device. No GPU is needed.\n"+
		"They are ordinary CUDA programs with libration.so preloaded; fakegpu is their driver.", workers, humanfmt.Bytes(r.Limit))
	if screen.Live {
		r.display.title("From another terminal: ration ps --region %s", path)
	}
	defer func() {
		for _, w := range r.workers {
			w.Close()
		}
	}()
	if err := r.begin(); err != nil {
		return r.Report, err
	}
	defer r.region.Close()
	defer r.observer.Stop()
	for _, part := range []func() error{r.refuse, r.stop, r.kill, r.end} {
		time.Sleep(r.pause)
		if err := part(); err != nil {
			return r.Report, err
		}
	}
	return r.Report, nil
}

// begin starts the workers and the observer.
func (r *run) begin() (err error) {
	for i := range workers {
		w, err := r.start(r.plan(i))
		if err != nil {
			return err
		}
		r.workers = append(r.workers, w)
	}
	slowest, err := attach(r.workers...)
	if err != nil {
		return err
	}
	if r.region, err = region.OpenMapped(r.machine.Region); err != nil {
		return err
	}
	r.observer = observer.StartUsage(r.region, 0, r.Limit, readEvery)
	for _, w := range r.workers {
		if err := r.show(w); err != nil {
			return err
		}
		w.churn()
	}
	r.display.live(r.region)
	r.display.say("%d processes started at once and were ready within %s; one of them made the region.", workers, humanfmt.Duration(slowest))
	return nil
}

// show adds a worker to the display, by its slot.
func (r *run) show(w *worker) error {
	p, err := r.find(w)
	if err == nil {
		r.display.add(p.Slot, w.name, w.PID())
	}
	return err
}

// refuse has one more program ask for more than is free.
func (r *run) refuse() error {
	ask := r.part(400)
	greedy, err := r.guest("greedy")
	if err != nil {
		return err
	}
	defer greedy.Close()
	got, err := greedy.Do(within, "alloc %d", ask)
	if err != nil {
		return err
	}
	r.Greedy = Request{PID: greedy.PID(), Asked: ask, Refused: got.OutOfMemory}
	r.Slowest = max(r.Slowest, int64(got.Slowest))
	if !got.OutOfMemory {
		r.display.say("greedy asked for %s and got it, which is wrong.", humanfmt.Bytes(ask))
		return greedy.quit()
	}
	if err := r.explain(greedy); err != nil {
		return err
	}
	r.display.say("greedy was refused with CUDA_ERROR_OUT_OF_MEMORY: it %s.", r.Greedy.Why)
	return greedy.quit()
}

// explain looks up in the region why a worker was refused.
func (r *run) explain(w *worker) error {
	refusals, err := r.region.Refusals()
	if err != nil {
		return err
	}
	for _, refusal := range refusals {
		if refusal.PID != w.PID() {
			continue
		}
		var top []humanfmt.Holder
		for _, h := range refusal.Top {
			top = append(top, humanfmt.Holder{Name: r.display.name(h.PID), Bytes: h.Bytes})
		}
		r.Greedy.Held, r.Greedy.Why = refusal.Held, humanfmt.Refusal(refusal.Asked, refusal.Held, refusal.Limit, top)
		return nil
	}
	return fmt.Errorf("pid %d was refused, and the region does not say why", w.PID())
}

// stop stops a worker for a while, wherever it is, and continues it.
func (r *run) stop() error {
	w := r.workers[stopped]
	if err := w.Stop(); err != nil {
		return err
	}
	from, before := time.Now(), r.observer.Changes()
	r.display.mark(w.PID(), "stopped")
	r.display.say("%s is stopped with SIGSTOP, at an arbitrary instruction.", w.name)
	time.Sleep(r.pause)
	r.Stopped = Stop{w.PID(), int64(time.Since(from)), r.observer.Changes() - before}
	if err := w.Continue(); err != nil {
		return err
	}
	r.display.mark(w.PID(), "")
	r.display.say("%s goes on after %s. The others did not wait: at least %s changes meanwhile.", w.name,
		humanfmt.Duration(time.Duration(r.Stopped.For)), humanfmt.Count(r.Stopped.Changes))
	return nil
}

// kill kills the hog, and has one more program ask for an amount that is free only
// because the hog is dead.
func (r *run) kill() error {
	ask := r.part(300)
	heir, err := r.guest("heir")
	if err != nil {
		return err
	}
	defer heir.Close()
	w := r.workers[hog]
	if err := w.Kill(); err != nil {
		return err
	}
	held, err := r.holds(w)
	if err != nil {
		return err
	}
	dead := time.Now()
	got, err := heir.Do(within, "alloc %d", ask)
	if err != nil {
		return err
	}
	r.Killed = Kill{PID: w.PID(), Held: held, Heir: heir.PID(), Asked: ask, After: int64(time.Since(dead))}
	r.Slowest = max(r.Slowest, int64(got.Slowest))
	r.display.mark(w.PID(), "killed")
	if got.OutOfMemory {
		return fmt.Errorf("asking for %d bytes of a dead process: refused with %d of %d granted", ask, r.region.Used(0), r.Limit)
	}
	r.display.say("hog is killed with SIGKILL, holding %s. heir asks for %s and has it %s later; no cleanup was needed.",
		humanfmt.Bytes(held), humanfmt.Bytes(ask), humanfmt.Duration(time.Duration(r.Killed.After)))
	time.Sleep(r.pause / 2)
	return heir.quit()
}
