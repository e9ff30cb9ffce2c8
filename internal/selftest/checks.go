package selftest

import (
	"fmt"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/observer"
	"ration/internal/procgroup"
	"ration/internal/region"
)

// election says who made the region, and how those came by it who found it made.
func (r *Report) election(first, second []attached, slow time.Duration) {
	n, roles, again := r.Processes, count(first), count(second)
	r.add("one initialiser", roles[region.Initialiser] == 1, map[string]int64{
		"initialisers": roles[region.Initialiser], "fast": roles[region.FastPath], "waited": roles[region.Waited], "helped": roles[region.Helped],
	}, "%d of %d; %d found it ready, %d waited, %d helped", roles[region.Initialiser], n,
		roles[region.FastPath], roles[region.Waited], roles[region.Helped])

	// Who is first in a race for a new region is the scheduler's business. Once
	// it is complete, everybody must take the fast path.
	r.add("fast path", again[region.FastPath] == int64(n), map[string]int64{"fast": again[region.FastPath], "slowest_ns": int64(slow)},
		"%d of %d when they started again, the slowest in %s", again[region.FastPath], n, humanfmt.Duration(slow))
}

// totalTime is the last check: since the beginning, and until all had attached.
func (r *Report) totalTime(began time.Time, attached time.Duration) {
	total := time.Since(began)
	r.add("total time", attached < attachWithin, map[string]int64{"total_ns": int64(total), "attached_ns": int64(attached)},
		"%s; all had attached %s after the start", humanfmt.Duration(total), humanfmt.Duration(attached))
}

// limitHeld takes three witnesses: the observer, each process right after it was
// granted something, and the highest figure that the region itself kept. The first
// may not run at the moment that counts, on a machine with few CPUs.
func (r *run) limitHeld(o *observer.Observer, peak uint64) {
	most := max(o.Most, peak)
	r.add("limit held", o.Passed == 0 && r.over == 0 && most <= r.Limit && o.Readings > 0, map[string]int64{
		"readings": o.Readings, "passed": o.Passed, "granted_over": r.over, "most_bytes": int64(most), "limit_bytes": int64(r.Limit),
	}, "passed in %d of %s readings and after %d grants; the most was %v of %v", o.Passed, humanfmt.Count(o.Readings), r.over, limit.Size(most), limit.Size(r.Limit))
}

// hostPIDs compares what the region says with what the kernel told us when we
// started the processes. That is the host's view only if we are in it.
func (r *Report) hostPIDs(view *region.Region, pid func(i int) int) error {
	const name = "host PIDs"
	if !region.OnHost() {
		r.Checks = append(r.Checks, Check{name, Skip, "this is a PID namespace of its own; run it on the host to see", nil})
		return nil
	}
	processes, err := view.Processes()
	if err != nil {
		return err
	}
	var found int64
	for i := range r.Processes {
		if slices.ContainsFunc(processes, func(p region.Process) bool { return p.HostPID == pid(i) && p.PID == pid(i) }) {
			found++
		}
	}
	r.add(name, found == int64(r.Processes), map[string]int64{"found": found}, "%d of %d", found, r.Processes)
	return nil
}

// killNeighbour has one more process take half of the limit, which is all that is
// free, kills it while it is busy, and asks for the same bytes at once.
func (r *run) killNeighbour(view *region.Region) (Check, error) {
	r.said("killing a neighbour")
	half := r.Limit / 2
	victims, err := procgroup.Start(procgroup.Spec{Role: VictimRole, N: 1, Task: func(int) any { return task{Path: r.path, Limit: half} }})
	if err != nil {
		return Check{}, err
	}
	defer victims.Close()
	var holding attached
	if err := victims.Workers[0].Receive(&holding, phaseWithin); err != nil {
		return Check{}, err
	}

	survivor, err := region.Open(r.path, region.Options{NoCreate: true})
	if err != nil {
		return Check{}, err
	}
	defer survivor.Close()
	slot, err := survivor.Claim("selftest survivor")
	if err != nil {
		return Check{}, err
	}
	killed := time.Now()
	if err := victims.Workers[0].Die(); err != nil {
		return Check{}, err
	}
	dead := time.Now()
	refusal := slot.Charge(0, abi.Data, half)
	granted := time.Now()
	if err := slot.Leave(); err != nil {
		return Check{}, err
	}

	c := Check{Name: "killed neighbour", Verdict: Pass, Values: map[string]int64{
		"bytes": int64(half), "from_kill_ns": int64(granted.Sub(killed)), "from_death_ns": int64(granted.Sub(dead)),
	}}
	c.Figure = fmt.Sprintf("all its %v went to a survivor %s after its death", limit.Size(half), humanfmt.Duration(granted.Sub(dead)))
	if refusal != nil {
		c.Verdict, c.Figure = Fail, fmt.Sprintf("its %v did not come back: %v", limit.Size(half), refusal)
	}
	return c, nil
}

// sum is the two ways to say what a device has granted.
type sum struct{ word, holdings uint64 }

// sums reads both. They agree only while nobody is busy.
func sums(view *region.Region) (s sum, err error) {
	holdings, err := view.Holdings(0, nil)
	for _, h := range holdings {
		s.holdings += h.Total
	}
	s.word = view.Used(0)
	return s, err
}

// books compares, while all processes held half their share and after they left.
func (r *run) books(view *region.Region, held sum) error {
	end, err := sums(view)
	if err != nil {
		return err
	}
	processes, err := view.Processes()
	if err != nil {
		return err
	}
	half := r.Limit / 2
	ok := held == sum{half, half} && end == sum{} && len(processes) == 0
	r.add("books agree", ok, map[string]int64{
		"held_word_bytes": int64(held.word), "held_sum_bytes": int64(held.holdings),
		"end_word_bytes": int64(end.word), "end_sum_bytes": int64(end.holdings), "end_slots": int64(len(processes)),
	}, "%v granted, %v held; at the end %v, %v and %d slots", limit.Size(held.word), limit.Size(held.holdings),
		limit.Size(end.word), limit.Size(end.holdings), len(processes))
	return nil
}

func count(all []attached) (n [4]int64) {
	for _, a := range all {
		n[a.Role]++
	}
	return n
}

func slowest(all []attached) (d time.Duration) {
	for _, a := range all {
		d = max(d, a.Took)
	}
	return d
}
