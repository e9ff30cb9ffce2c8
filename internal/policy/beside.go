package policy

import (
	"maps"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
)

// beside is what the ration of a user must fit beside: the rations of others, and what programs hold in no ration.
type beside struct {
	booked []booked                 // by others
	uid    int                      // the user
	has    launch.Booking           // by the user's ration already
	held   *holdings                // nil if it is not known
	roots  map[string]region.Limits // of root's own jobs that do not sleep, by path
}

// beside returns what the ration of a user must fit beside.
func (r *rations) beside(uid int) (b beside) {
	b.uid = uid
	var own []booked
	for _, other := range Users() {
		to := &b.booked
		if other == uid {
			to = &own
		}
		if l, err := region.LimitsBeside(jobOf(other).Path); err == nil {
			*to = append(*to, booked{other, false, l})
		}
		for _, run := range job.RunsOf(other) {
			if l, err := region.LimitsBeside(run.Path); err == nil {
				*to = append(*to, booked{other, true, l})
			}
		}
	}
	for _, o := range append(own, r.ended...) {
		if o.uid == uid {
			b.has.Add(o.limits)
		}
	}
	if r.seen != nil && time.Since(r.seen.at) < heldFor {
		b.held = r.seen.held
	}
	if r.roots == nil {
		if r.roots = launch.JobsOfRoot(); len(r.roots) > 0 {
			_ = r.mustLook() // one may sleep
		}
		maps.DeleteFunc(r.roots, func(path string, _ region.Limits) bool { return r.seen != nil && r.seen.asleep[path] })
	}
	b.roots = r.roots
	return b
}

// booking returns the sum of the rations of others. The jobs of the users in without do not count, but their runs do.
func (b *beside) booking(without []int) (sum launch.Booking) {
	for i := range b.booked {
		if o := &b.booked[i]; o.run || !slices.Contains(without, o.uid) {
			sum.Add(o.limits)
		}
	}
	return sum
}

// grows reports whether limits are more than the user's ration has on a device.
func (b *beside) grows(l region.Limits) bool {
	for d := range abi.Devices {
		if b.growsOn(d, l) {
			return true
		}
	}
	return false
}

func (b *beside) growsOn(d int, l region.Limits) bool { return l.Memory[d].Bytes() > b.has.Memory[d] }

// leastOutside is how much must be held in no ration on a device to count: the driver takes some memory that nobody holds,
// and its count of a job may exceed that of the library a little.
const leastOutside = 1 << 30

// outside returns how many bytes of a device processes hold in no ration, and how many root's own jobs have by their limits, if the
// user of limits l is to have more there: what a user has stays granted. All that the processes of a user hold counts in
// the user's ration first, also what is in no job:
// otherwise a user could take twice as much from others as the driver counts.
//
// Users in without lose their jobs, which have no process, or sleep: what processes held in them a moment ago is free.
func (b *beside) outside(d int, l region.Limits, without []int) (held, roots uint64) {
	if !b.growsOn(d, l) {
		return 0, 0
	}
	for _, job := range b.roots {
		roots += job.Memory[d].Bytes()
	}
	if b.held == nil {
		return 0, roots
	}
	rations := map[int]uint64{b.uid: l.Memory[d].Bytes()}
	for i := range b.booked {
		if o := &b.booked[i]; o.run || !slices.Contains(without, o.uid) {
			rations[o.uid] += o.limits.Memory[d].Bytes()
		}
	}
	var covered, beyond uint64
	count := func(held, ration uint64) {
		in := min(held, ration)
		covered, beyond = covered+in, beyond+held-in
	}
	for uid, ration := range rations {
		count(b.held.inJobs[uid][d]+b.held.outside[uid][d], ration)
	}
	for uid, held := range b.held.outside {
		if _, has := rations[uid]; !has {
			count(held[d], 0)
		}
	}
	for path, held := range b.held.roots {
		count(held[d], b.roots[path].Memory[d].Bytes())
	}
	// A process may be in several jobs by its own doing, and counts in each.
	beyond = min(beyond, b.held.used[d]-min(covered, b.held.used[d]))
	if beyond < leastOutside {
		beyond = 0
	}
	return beyond, roots
}
