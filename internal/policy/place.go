package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// A ration for one of several devices is placed: its job sees some devices, and the others are hidden.
// PROTOCOL.md has the rule and the invariant. Callers of these functions hold the lock of lockJobs.

// ErrPlaced is returned if a job is on other devices than a request needs.
var ErrPlaced = errors.New("your ration is on another GPU")

// place is a set of devices, one bit each, by the machine's numbers. An empty place means that no choice
// was made.
type place uint32

func placeAt(devices ...int) (p place) {
	for _, d := range devices {
		p |= 1 << d
	}
	return p
}

func (p place) has(device int) bool { return p>>device&1 != 0 }
func (p place) count() int          { return bits.OnesCount32(uint32(p)) }

func (p place) devices() (out []int) {
	for d := range abi.Devices {
		if p.has(d) {
			out = append(out, d)
		}
	}
	return out
}

// list formats the place for a request: 0,2.
func (p place) list() string {
	var parts []string
	for _, d := range p.devices() {
		parts = append(parts, strconv.Itoa(d))
	}
	return strings.Join(parts, ",")
}

// String formats the place for a sentence: GPU 1, or GPUs 0, 2.
func (p place) String() string {
	if p.count() == 1 {
		return "GPU " + p.list()
	}
	return "GPUs " + strings.ReplaceAll(p.list(), ",", ", ")
}

// parsePlace parses the form of list.
func parsePlace(list string) (p place, err error) {
	for part := range strings.SplitSeq(list, ",") {
		d, err := strconv.Atoi(part)
		if err != nil || d < 0 || d >= abi.Devices {
			return 0, fmt.Errorf("%q: not the number of a GPU (nvidia-smi -L lists them)", part)
		}
		p |= placeAt(d)
	}
	return p, nil
}

// candidate is a device that a ration can be placed on.
type candidate struct {
	device int
	full   bool  // the ration does not fit, even if all idle users lose theirs
	lose   int   // idle users that must lose their rations for it
	free   int64 // bytes of the device that are in no ration of another user; negative if overbooked
}

// choose returns the n best of the candidates, or all if there are fewer. The rule is: devices on which the
// ration fits, then those where the fewest idle users lose their rations, then the device with most memory
// that is in no ration, then the lowest number. why explains the choice.
func choose(n int, all []candidate) (at place, why string) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b candidate) int {
		if a.full != b.full {
			if a.full {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.lose, b.lose), cmp.Compare(b.free, a.free), cmp.Compare(a.device, b.device))
	})
	var has, left []string
	for i, c := range all {
		text := fmt.Sprintf("GPU %d had %s in no ration", c.device, limit.Size(max(c.free, 0)))
		if c.lose > 0 {
			text = fmt.Sprintf("GPU %d was full, and %s lost theirs", c.device, humanfmt.Plural(c.lose, "idle ration", "idle rations"))
		}
		if i < n {
			at |= placeAt(c.device)
			has = append(has, text)
		} else {
			left = append(left, fmt.Sprintf("GPU %d %s", c.device, limit.Size(max(c.free, 0))))
		}
	}
	why = strings.Join(has, ", ")
	if len(left) > 0 {
		why += " (" + strings.Join(left, ", ") + ")"
	}
	return at, why
}

// wanted returns how many devices a ration is for, or 0 for all of them. On a machine with several
// devices the default is one; but a ration that names devices has those that it names.
func (r *rations) wanted(ration limit.Limits) int {
	n := len(r.totals())
	if n < 2 || ration.Devices == limit.AllDevices || slices.ContainsFunc(r.driver.Devices, func(d gpu.Device) bool { return d.MIG }) {
		return 0
	}
	if ration.Devices.IsSet() {
		if int(ration.Devices) >= n {
			return 0
		}
		return int(ration.Devices)
	}
	for d := range limit.MaxDevices {
		if ration.Names(d) {
			return 0
		}
	}
	return 1
}

// candidates returns the devices that limits allow, beside the rations of others. idle are the users that
// may lose theirs.
func (r *rations) candidates(limits region.Limits, others []booked, idle []int) (out []candidate) {
	var held booking
	for i := range others {
		held.add(others[i].limits)
	}
	for d, total := range r.totals() {
		if !mayUse(limits, d) {
			continue
		}
		c := candidate{device: d, free: int64(total) - int64(held.memory[d])}
		if !r.policy.Overbook {
			on := restrict(limits, placeAt(d))
			check := func(without []int) error { return r.checkBeside(on, others, without) }
			if check(nil) != nil {
				lose, err := fewest(idle, check)
				c.full, c.lose = err != nil, len(lose)
			}
		}
		out = append(out, c)
	}
	return out
}

// mayUse reports whether limits allow memory of a device.
func mayUse(l region.Limits, device int) bool {
	return !l.Memory[device].Limited() || l.Memory[device].Bytes() > 0
}

// restrict returns limits without the devices that are not in a place, which are hidden and have no memory.
func restrict(l region.Limits, at place) region.Limits {
	for d := range abi.Devices {
		if !at.has(d) {
			l.Memory[d], l.Compute[d], l.ComputeMax[d], l.Hidden[d] = abi.MakeLimit(0), 0, 0, 1
		}
	}
	return l
}

// visible returns the devices that a job with these limits sees.
func visible(l region.Limits) (at place) {
	for d := range abi.Devices {
		if l.Hidden[d] == 0 {
			at |= placeAt(d)
		}
	}
	return at
}

// placed returns the devices that a user's job and runs see. is is false if the user has none. All of
// them see the same: a run is made with the place of the job, and a job beside runs with that of the runs.
func placed(uid int) (at place, is bool) {
	if usable(uid) {
		l, err := readLimits(job.OfUserPath(uid))
		return visible(l), err == nil
	}
	for _, run := range readyRuns(uid) {
		if l, err := readLimits(run.Path); err == nil {
			return visible(l), true
		}
	}
	return 0, false
}

// place restricts the limits of a ration to the devices of the user's job, or of at, or to those that it
// chooses. If necessary it takes back the jobs of idle users. A job stays on its devices as long as it
// exists; if the rule now wants another number of them, an idle job is taken back and made again.
func (r *rations) place(uid int, ration limit.Limits, limits region.Limits, at place) (_ region.Limits, why string, err error) {
	want := r.wanted(ration)
	if now, is := placed(uid); is {
		switch {
		case now&at != at:
			return limits, "", otherPlace(now, at)
		case r.suits(now, want, limits) || !vacate(uid):
			limits = restrict(limits, now)
			return limits, "", r.fits(uid, limits)
		}
	}
	if want == 0 {
		return limits, "", r.fits(uid, limits)
	}
	if at == 0 {
		return r.placeAnew(uid, want, limits)
	}
	if !r.suits(at, want, limits) {
		return limits, "", fmt.Errorf("%w: %v is not %s of this machine that your ration may use", ErrPlaced, at, humanfmt.Plural(want, "GPU", "GPUs"))
	}
	limits = restrict(limits, at)
	return limits, "the user asked for " + at.String(), r.fits(uid, limits)
}

func otherPlace(now, at place) error {
	return fmt.Errorf("%w: %v, not %v (start the program again)", ErrPlaced, now, at)
}

// checkPlace returns an error if a user's job does not see all devices of at.
func checkPlace(uid int, at place) error {
	if now, is := placed(uid); is && now&at != at {
		return otherPlace(now, at)
	}
	return nil
}

// placeAnew restricts limits to the devices that it chooses.
func (r *rations) placeAnew(uid, want int, limits region.Limits) (_ region.Limits, why string, err error) {
	for range placeTries {
		var at place
		all := r.candidates(limits, bookedByOthers(uid), r.removable(map[int]bool{uid: true}))
		at, why = choose(want, all)
		on := restrict(limits, at)
		if err = r.fits(uid, on); err == nil {
			return on, why, nil
		}
		var room *noRoom
		if errors.As(err, &room) && want == 1 {
			room.among = len(all)
		}
		if !slices.ContainsFunc(all, func(c candidate) bool { return !c.full }) {
			break
		}
		// A user that was idle has started a program since: choose again.
	}
	return limits, "", err
}

// placeTries bounds how often a place is chosen while users start programs.
const placeTries = 3

// suits reports whether a place is one for a ration: want devices, or all if want is 0.
func (r *rations) suits(at place, want int, limits region.Limits) bool {
	n := 0
	for d := range r.totals() {
		if at.has(d) && want != 0 && !mayUse(limits, d) {
			return false
		}
		if at.has(d) {
			n++
		}
	}
	if want == 0 {
		return n == len(r.totals())
	}
	return n == want && at>>len(r.totals()) == 0
}

// vacate takes back the job of a user that has no process, no promise and no run.
func vacate(uid int) bool { return len(job.RunsOf(uid)) == 0 && evict(uid) == nil }

// restrictRun restricts the limits of a run to the devices that the user's job sees. It is an error if the
// run names another device.
func restrictRun(limits *region.Limits, asked limit.Limits, users region.Limits) error {
	at := visible(users)
	for d := range abi.Devices {
		if !at.has(d) && asked.Names(d) {
			return fmt.Errorf("%w: it names GPU %d, and your ration is on %v (ration policy show)", ErrRun, d, at)
		}
	}
	*limits = restrict(*limits, at)
	return nil
}
