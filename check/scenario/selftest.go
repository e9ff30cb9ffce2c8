package scenario

import (
	"fmt"
	"slices"
	"time"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/region"
)

// MaxProcesses is the most processes that a self-test may have.
const MaxProcesses = 300

const (
	share       = 64 * uint64(limit.MiB) // of the limit, for each program
	contextCost = 2 * uint64(limit.MiB)  // device memory that a context takes
	// atRest is how much each program holds at the end besides its context. It is at least the size
	// that a memory pool reserves, so that a pool can provide it.
	atRest = 32 * uint64(limit.MiB)

	busyFor      = 400 * time.Millisecond // length of each phase in which programs allocate and free
	attachWithin = 10 * time.Second       // target for all programs together
	// askEvery is the pause between two queries of the driver. Each uses CPU time of two processes,
	// which the tested programs then lack.
	askEvery = 200 * time.Microsecond
)

// Verdicts.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip" // cannot be checked here; Detail says why
)

// Promise is the result of checking one promise of ration.
type Promise struct {
	Name    string           `json:"name"`
	Verdict string           `json:"verdict"` // pass, fail or skip
	Detail  string           `json:"detail"`  // the measured values, as text
	Values  map[string]int64 `json:"values"`  // the measured values; times end in _ns
}

// SelftestReport is the outcome of a self-test.
type SelftestReport struct {
	Processes int       `json:"processes"`
	Limit     uint64    `json:"limit_bytes"`
	Passed    bool      `json:"passed"`
	Checks    []Promise `json:"checks"`
}

// values are the measured values of a check.
type values = map[string]int64

// judge adds a check. The detail is formatted with args.
func (r *SelftestReport) judge(name string, ok bool, measured values, detail string, args ...any) {
	verdict := Fail
	if ok {
		verdict = Pass
	}
	r.Checks = append(r.Checks, Promise{name, verdict, fmt.Sprintf(detail, args...), measured})
}

// selftest is a self-test in progress.
type selftest struct {
	*stage
	SelftestReport
	began    time.Time
	attached time.Duration // from the start to the last program attached
	progress func(string)
}

// Selftest runs a self-test with n programs, and calls progress with its current step. The programs
// start at once without a region, end, and start again with a region. Then each allocates and frees
// within a share, and all shares add up to the limit: nothing may be refused. Then each allocates
// as much as it can get. Then all request more than half of the limit, which only one can have:
// most requests must be refused. Meanwhile one observer reads the region and another one queries
// the driver. Finally a program is killed while it holds all memory that was free.
//
// The error matches embedded.ErrNotBuilt if this ration was built without its library.
func Selftest(n int, progress func(string)) (SelftestReport, error) {
	t := &selftest{began: time.Now(), progress: progress, SelftestReport: SelftestReport{Processes: n, Limit: uint64(n) * share}}
	err := onStage("h200", t.Limit, contextCost, func(s *stage) {
		progress(fmt.Sprintf("starting %d programs", n))
		t.stage = s
		t.workers = s.start(n)
		if err := t.run(); err != nil {
			// A program that hangs or ends early is a result of the test, not an error of running
			// it.
			t.judge("no deadlock", false, nil, "%v", err)
		}
	})
	t.Passed = !slices.ContainsFunc(t.Checks, func(c Promise) bool { return c.Verdict == Fail })
	return t.SelftestReport, err
}

// run runs all phases and adds their checks.
func (t *selftest) run() (err error) {
	defer catch(&err)
	t.attachTwice()
	t.observe(0)
	var asked observer.Tally // final after driver.Stop
	driver := observer.Start(askEvery, func() error {
		used, err := t.driverUsed()
		if err == nil {
			asked.Add(used, t.Limit)
		}
		return err
	})
	defer driver.Stop()
	t.work()
	t.checkHostPIDs()
	t.checkDeviceSize()
	held := t.accounts()
	killed := t.killNeighbour()
	need(t.usage.Stop())
	need(driver.Stop())
	t.checkLimit(t.usage.Tally, asked)
	t.Checks = append(t.Checks, killed)
	quit(t.workers...)
	t.judge("no deadlock", true, values{"ended": int64(t.Processes)}, "%d of %d ended by themselves", t.Processes, t.Processes)
	t.checkAccounts(held, t.accounts())
	total := time.Since(t.began)
	t.judge("total time", t.attached < attachWithin, values{"total_ns": int64(total), "attached_ns": int64(t.attached)},
		"%s; all had attached %s after the start", humanfmt.Duration(total), humanfmt.Duration(t.attached))
	return nil
}

// attachTwice starts all programs at once without a region, and then new programs with the region
// of the first ones.
func (t *selftest) attachTwice() {
	t.progress("electing an initialiser")
	from := time.Now()
	first, _ := attach(t.workers...)
	t.attached = time.Since(from)
	quit(t.workers...)
	t.closeStarted()
	t.workers = t.start(t.Processes)
	second, slowest := attach(t.workers...)
	t.judge("one initialiser", first[region.Initialiser] == 1, values{
		"initialisers": first[region.Initialiser], "fast": first[region.FastPath], "waited": first[region.Waited], "helped": first[region.Helped],
	}, "%d of %d; %d found it ready, %d waited, %d helped", first[region.Initialiser], t.Processes,
		first[region.FastPath], first[region.Waited], first[region.Helped])
	// Which programs take the fast path to a new region depends on the scheduler. Once it is
	// initialised, all must take it.
	t.judge("fast path", second[region.FastPath] == int64(t.Processes), values{"fast": second[region.FastPath], "slowest_ns": int64(slowest)},
		"%d of %d when they started again, the slowest in %s", second[region.FastPath], t.Processes, humanfmt.Duration(slowest))
}

// work makes all programs allocate and free, first within their shares and then beyond.
func (t *selftest) work() {
	churn := func(most uint64) func(int) string {
		return func(i int) string { return fmt.Sprintf("churn %d %d %d 0", i+1, most, share/4) }
	}
	var requests, refused int64 // requests within the shares must be granted
	var denied, wrong int64     // refusals beyond the shares, and how many of them were wrong
	for _, phase := range []struct {
		progress string
		command  func(i int) string
		fits     bool // every request must be granted
	}{
		{"allocating within shares", churn(share - contextCost), true},
		{"allocating as much as there is", churn(t.Limit), false},
		{"racing for more than half", same(fmt.Sprintf("duel %d", t.Limit/2+abi.Unit)), false},
	} {
		t.progress(phase.progress)
		t.tell(0, phase.command)
		time.Sleep(busyFor)
		for _, a := range t.endWork("freeall") {
			if phase.fits {
				requests, refused = requests+a.Numbers[0], refused+a.Numbers[1]
			} else {
				denied += a.Numbers[1]
			}
		}
		for _, r := range must(t.region.Refusals()) {
			if r.Held+r.Asked <= r.Limit { // by its own numbers the request would have fit
				wrong++
			}
		}
	}
	t.progress("holding half a share")
	for _, a := range t.tell(1, func(i int) string {
		return fmt.Sprintf("%s %d", [...]string{"alloc", "async"}[i%2], atRest)
	}) {
		requests++
		if a.OutOfMemory {
			refused++
		}
	}
	// Each refusal is counted once by the region and once by a program.
	unknown := int64(t.region.Refused(0)) - refused - denied
	t.judge("no false refusal", refused == 0 && wrong == 0 && unknown == 0, values{
		"requests": requests, "refused": refused, "over_limit_refused": denied, "over_limit_wrong": wrong, "unaccounted": unknown,
	}, "%d of %s within shares; %d wrong of %s beyond", refused, humanfmt.Count(requests), wrong, humanfmt.Count(denied))
}

// checkHostPIDs compares the region's host PIDs with the PIDs of this process's children. Those are
// host PIDs only if this process runs on the host.
func (t *selftest) checkHostPIDs() {
	const name = "host PIDs"
	if !region.OnHost() {
		t.Checks = append(t.Checks, Promise{name, Skip, "this is a PID namespace of its own; run it on the host to see", nil})
		return
	}
	var found int64
	for _, p := range must(t.region.Processes()) {
		if p.PID == p.HostPID && slices.ContainsFunc(t.workers, func(w *cuda.Program) bool { return w.PID() == p.PID }) {
			found++
		}
	}
	t.judge(name, found == int64(t.Processes), values{"found": found}, "%d of %d", found, t.Processes)
}

// checkDeviceSize asks each program how large its device is.
func (t *selftest) checkDeviceSize() {
	var right int64
	for _, a := range t.tell(1, same("info")) {
		if uint64(a.Numbers[1]) == t.Limit {
			right++
		}
	}
	t.judge("device size", right == int64(t.Processes), values{"right": right},
		"%d of %d see a device of %v", right, t.Processes, limit.Size(t.Limit))
}

// killNeighbour makes one more program take all free memory, kills it while it allocates and frees,
// and makes another one request the same amount at once.
func (t *selftest) killNeighbour() Promise {
	t.progress("killing a neighbour")
	victim, survivor := t.guest(), t.guest()
	free := t.Limit - t.region.Used(0)
	if must(victim.Do(within, "alloc %d", free-abi.Unit)).OutOfMemory {
		need(fmt.Errorf("a neighbour was refused %d bytes with %d free", free-abi.Unit, free))
	}
	victim.Tell("duel %d", abi.Unit)
	bytes := free + contextCost // all that the victim held
	kill, got, fromKill := t.kill(victim, survivor, bytes)
	quit(survivor)
	c := Promise{Name: "killed neighbour", Verdict: Pass, Values: values{
		"bytes": int64(bytes), "from_kill_ns": int64(fromKill), "from_death_ns": kill.After,
	}}
	c.Detail = fmt.Sprintf("all its %v went to a survivor %s after its death", limit.Size(bytes), humanfmt.Duration(time.Duration(kill.After)))
	if got.OutOfMemory {
		c.Verdict, c.Detail = Fail, fmt.Sprintf("its %v did not come back", limit.Size(bytes))
	}
	return c
}

// checkLimit uses three sources: reads of the region, the peak that the region itself records, and
// the driver, which knows no limit.
func (t *selftest) checkLimit(o, d observer.Tally) {
	most := max(o.Most, t.region.Peak(0), d.Most)
	t.judge("limit held", o.Exceeded == 0 && d.Exceeded == 0 && most <= t.Limit && o.Readings > 0 && d.Readings > 0, values{
		"readings": o.Readings, "exceeded": o.Exceeded, "driver_readings": d.Readings, "driver_exceeded": d.Exceeded,
		"most_bytes": int64(most), "limit_bytes": int64(t.Limit),
	}, "exceeded in %d of %s readings and %d of %s by the driver; the most was %v of %v", o.Exceeded, humanfmt.Count(o.Readings),
		d.Exceeded, humanfmt.Count(d.Readings), limit.Size(most), limit.Size(t.Limit))
}

// checkAccounts compares the counts while all programs held memory, and those after they have
// ended.
func (t *selftest) checkAccounts(held, end Accounts) {
	all := uint64(t.Processes) * (atRest + contextCost)
	t.judge("accounts agree", held.agree() && held.Granted == all && end == Accounts{}, values{
		"held_granted_bytes": int64(held.Granted), "held_sum_bytes": int64(held.Held), "held_driver_bytes": int64(held.Driver),
		"end_granted_bytes": int64(end.Granted), "end_sum_bytes": int64(end.Held), "end_driver_bytes": int64(end.Driver),
		"end_slots": int64(end.Processes),
	}, "%v granted, %v held, %v in the driver; at the end %v, %v, %v and %d processes", limit.Size(held.Granted), limit.Size(held.Held),
		limit.Size(held.Driver), limit.Size(end.Granted), limit.Size(end.Held), limit.Size(end.Driver), end.Processes)
}
