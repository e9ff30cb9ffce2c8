package policy

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

// A ration for one of several devices is placed: its job sees some devices, and the others are hidden.
// PROTOCOL.md has the rule and the invariant. Callers of these functions hold the lock of lockJobs.

// ErrPlaced is returned if a job is on other devices than a request needs.
var ErrPlaced = errors.New("your ration is on another GPU")

// inNoRation is the memory that counts as free when a ration is placed: no ration has it, and no program holds it in none.
const inNoRation = "left"

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

// OnDevices returns on how many of the machine's devices the ration of a user will be, or 0 for all.
func (p *Policy) OnDevices(uid int) int {
	rule, err := p.For(uid)
	if err != nil || rule == nil {
		return 0
	}
	r := p.onKnown()
	defer r.close()
	return r.wanted(rule.Default)
}

// onKnown returns the rations on the machine's devices as they are known without asking the driver.
func (p *Policy) onKnown() *rations {
	r := &rations{policy: p}
	r.driver, r.missing = launch.KnownDevices()
	return r
}

// candidates returns the devices that limits allow, beside the rations of others. idle are the users that
// may lose theirs.
func (r *rations) candidates(limits region.Limits, b beside, idle []int) (out []launch.Candidate) {
	held := b.booking(nil)
	for d, total := range r.totals() {
		if !limits.MayUse(d) {
			continue
		}
		outside, roots := b.outside(d, limits, nil)
		c := launch.Candidate{Device: d, Free: int64(total) - int64(held.Memory[d]) - int64(outside) - int64(roots)}
		if !r.policy.Overbook {
			on := limits.Restrict(region.PlaceAt(d))
			check := func(without []int) error { return r.checkBeside(on, b, without) }
			if check(nil) != nil {
				lose, err := fewest(idle, check)
				c.Full, c.Lose = err != nil, len(lose)
			}
		}
		out = append(out, c)
	}
	return out
}

// placed returns the place of a user's job and runs. is is false if the user has none. All of
// them have the same place: a run gets that of the job, and a job beside runs that of the runs.
func placed(uid int) (at region.Place, is bool) {
	if usable(uid) {
		l, err := region.LimitsBeside(job.OfUserPath(uid))
		return l.Visible(), err == nil
	}
	for _, run := range readyRuns(uid) {
		if l, err := region.LimitsBeside(run.Path); err == nil {
			for d := range abi.Devices {
				if l.Hidden[d] == hiddenByRun {
					l.Hidden[d] = 0
				}
			}
			return l.Visible(), true
		}
	}
	return 0, false
}

// place restricts the limits of a ration to the devices of the user's job, or of at, or to those that it
// chooses. If necessary it takes back the jobs of idle users. A job stays on its devices as long as it
// exists. If the rule now wants others, or more than there is room for, an idle job is taken back and made again, where
// there is room. takes is that of give. atWhy says why it is on the devices of at.
func (r *rations) place(uid int, ration limit.Limits, limits region.Limits, at region.Place, takes bool, atWhy string) (_ region.Limits, why string, err error) {
	want := r.wanted(ration)
	if now, is := placed(uid); is {
		if err := sees(now, at); err != nil {
			return limits, "", err
		}
		here := r.staying(uid, want, limits, now)
		if !r.suits(now, want, limits) && idle(uid) {
			// With no room elsewhere it stays, if it may: a changed rule must not cost the user the present place, nor other
			// idle users theirs.
			find := func() (region.Limits, string, error) { return r.placeFree(uid, want, limits) }
			if at != 0 || isLent(&here) {
				find = func() (region.Limits, string, error) { return r.placeNew(uid, want, limits, at, atWhy) }
			}
			there, why, full := find()
			if errors.Is(full, errUnread) {
				return limits, "", full
			}
			if (full == nil || isLent(&here)) && evict(uid) == nil {
				return there, why, full
			}
		}
		err := r.fits(uid, here, takes || !usable(uid) || lent(uid))
		if want != 0 && at == 0 && errors.Is(err, ErrOverbooked) && idle(uid) {
			if there, why, full := r.placeFree(uid, want, limits); full == nil && evict(uid) == nil {
				return there, why, nil
			}
		}
		if now.Count() < abi.Devices { // the job, if it has to be made again
			why = "the user's ration was there already"
		}
		return here, why, err
	}
	return r.placeNew(uid, want, limits, at, atWhy)
}

// staying returns the limits of a ration for a user that stays at a place. On more devices than the ration is for, no limit
// grows: the user would have the ration more than once.
func (r *rations) staying(uid, want int, limits region.Limits, at region.Place) region.Limits {
	here, n := limits.Restrict(at), 0
	for d := range r.totals() {
		if at.Has(d) {
			n++
		}
	}
	if now, err := region.LimitsBeside(job.OfUserPath(uid)); want != 0 && n > want && err == nil && !isLent(&now) {
		b := r.beside(uid)
		here = b.most(here, now)
	}
	return here
}

// placeNew is place for a user whose job has no place yet, or is to have another.
func (r *rations) placeNew(uid, want int, limits region.Limits, at region.Place, atWhy string) (_ region.Limits, why string, err error) {
	if want == 0 {
		return limits, "", r.fits(uid, limits, true)
	}
	if at == 0 {
		return r.placeAnew(uid, want, limits)
	}
	if !r.suits(at, want, limits) {
		return limits, "", fmt.Errorf("%w: %v is not %s of this machine that your ration may use", ErrPlaced, at, humanfmt.Plural(want, "GPU", "GPUs"))
	}
	limits = limits.Restrict(at)
	return limits, atWhy, r.fits(uid, limits, true)
}

// sees returns an error if a job at now does not see all devices of at.
func sees(now, at region.Place) error {
	if now&at != at {
		return fmt.Errorf("%w: %v, not %v (start the program again)", ErrPlaced, now, at)
	}
	return nil
}

// checkPlace returns an error if a user's job does not see all devices of at.
func checkPlace(uid int, at region.Place) error {
	if now, is := placed(uid); is {
		return sees(now, at)
	}
	return nil
}

// placeAnew restricts limits to the devices that it chooses.
func (r *rations) placeAnew(uid, want int, limits region.Limits) (_ region.Limits, why string, err error) {
	if r.policy.Overbook && r.mustLook() { // otherwise fits does
		return limits, "", errUnread
	}
	candidates := func() []launch.Candidate {
		return r.candidates(limits, r.beside(uid), r.yielding(map[int]bool{uid: true}))
	}
	at, why, err := chooseFitting(want, candidates, func(at region.Place) error { return r.fits(uid, limits.Restrict(at), true) })
	if err != nil {
		return limits, "", err
	}
	return limits.Restrict(at), why, nil
}

// placeFree is placeNew for a user without a program: nobody loses a ration for it, and those who wait come first.
func (r *rations) placeFree(uid, want int, limits region.Limits) (_ region.Limits, why string, err error) {
	if err := r.checkTurn(uid, true); err != nil {
		return limits, "", err
	}
	if r.mustLook() {
		return limits, "", errUnread
	}
	b := r.beside(uid)
	if want != 0 {
		at, because := launch.Choose(want, r.candidates(limits, b, nil), inNoRation)
		limits, why = limits.Restrict(at), because
	}
	if r.policy.Overbook {
		return limits, why, nil
	}
	return limits, why, r.checkBeside(limits, b, nil)
}

// chooseFitting chooses devices on which a ration fits. fits takes back the rations that must be lost, and fails if
// one of these users has started a program since the candidates were found.
func chooseFitting(want int, candidates func() []launch.Candidate, fits func(region.Place) error) (at region.Place, why string, err error) {
	for range placeTries {
		all := candidates()
		at, why = launch.Choose(want, all, inNoRation)
		if err = fits(at); err == nil {
			return at, why, nil
		}
		var room *noRoom
		if errors.As(err, &room) && want == 1 {
			room.among = len(all)
		}
		if !slices.ContainsFunc(all, func(c launch.Candidate) bool { return !c.Full }) {
			break
		}
	}
	return 0, "", err
}

// placeTries bounds how often a place is chosen while users start programs.
const placeTries = 3

// suits reports whether a place is one for a ration: want devices, or all if want is 0.
func (r *rations) suits(at region.Place, want int, limits region.Limits) bool {
	n := 0
	for d := range r.totals() {
		if at.Has(d) && want != 0 && !limits.MayUse(d) {
			return false
		}
		if at.Has(d) {
			n++
		}
	}
	if want == 0 {
		return n == len(r.totals())
	}
	return n == want && at>>len(r.totals()) == 0
}

// misplaced reports whether a user has a job on other devices than the rule wants. It is moved when it is idle.
func (r *rations) misplaced(uid int) bool {
	now, is := placed(uid)
	return is && r.misplacedAt(uid, now)
}

func (r *rations) misplacedAt(uid int, now region.Place) bool {
	ration, rule, err := r.rationOf(uid)
	if err != nil || rule.Exempt {
		return false
	}
	limits, err := r.limitsOf(ration)
	return err == nil && !r.suits(now, r.wanted(ration), limits)
}

// movesText says where a misplaced job is, and where it moves.
func (r *rations) movesText(uid int, now region.Place) string {
	ration, _, _ := r.rationOf(uid) // misplacedAt has it
	is, will := "every GPU", "every GPU"
	if now.Count() < abi.Devices {
		is = now.String()
	}
	if ration.Memory.OnlyNamed() {
		will = "the GPUs that it names (" + ration.Memory.String() + ")"
	} else if n := r.wanted(ration); n > 0 {
		will = humanfmt.Plural(n, "GPU", "GPUs")
	}
	return fmt.Sprintf("is on %s, and the rule has %s (it moves when no program of the user runs, and there is room)", is, will)
}

// ErrMove is returned for a ration that cannot be moved.
var ErrMove = errors.New("your ration cannot be moved")

// moveError is ErrOverbooked for a ration that is to be moved.
type moveError struct{ error }

func (e moveError) Unwrap() error { return e.error }

// whyFixed says why a ration has no other place.
func (r *rations) whyFixed(ration limit.Limits, rule *Rule) string {
	switch n := len(r.totals()); {
	case rule.Exempt:
		return "you have none: " + rule.Source + " is exempt"
	case n == 1:
		return "this machine has one GPU"
	case ration.Devices != limit.AllDevices && int(ration.Devices) < n && ration.Memory.OnlyNamed():
		return fmt.Sprintf("%s names the GPUs that it is on (memory = %q)", rule.Source, ration.Memory)
	}
	return "your programs see every GPU of this machine (CUDA_VISIBLE_DEVICES selects among them)"
}

// relocate takes back a user's job and makes it again on the devices of at, or on others than now if at is
// empty. It returns the new place. A job in use stays where it is.
func (r *rations) relocate(uid int, at region.Place) (region.Place, error) {
	ration, rule, err := r.rationOf(uid)
	if err != nil {
		return 0, err
	}
	want := r.wanted(ration)
	now, is := placed(uid)
	if want == 0 && is && r.misplacedAt(uid, now) {
		return 0, fmt.Errorf("%w: your job %s", ErrMove, r.movesText(uid, now))
	}
	if rule.Exempt || want == 0 {
		return 0, fmt.Errorf("%w: %s", ErrMove, r.whyFixed(ration, rule))
	}
	if err := r.checkTurn(uid, true); err != nil {
		return 0, err
	}
	limits, err := r.limitsOf(ration)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", rule.Source, err)
	}
	why := "ration policy move asked for " + at.String()
	switch {
	case at != 0 && !r.suits(at, want, limits):
		return 0, fmt.Errorf("%w: it needs %s that this machine has and your rule allows, not %v (ration ps lists the GPUs)", ErrMove, humanfmt.Plural(want, "GPU", "GPUs"), at)
	case at == 0 && r.mustLook():
		return 0, errUnread
	case at == 0:
		all := r.candidates(limits, r.beside(uid), r.yielding(map[int]bool{uid: true}))
		all = slices.DeleteFunc(all, func(c launch.Candidate) bool { return is && now.Has(c.Device) })
		if len(all) < want {
			return 0, fmt.Errorf("%w: there is no other GPU that it may use", ErrMove)
		}
		at, why = launch.Choose(want, all, inNoRation)
		why = "ration policy move: " + why
	}
	if is && now == at {
		return at, nil
	}
	asked, _ := os.ReadFile(askedPath(uid))
	if is {
		busy := fmt.Errorf("%w: a program of yours uses it on %v (end that, and try again)", ErrMove, now)
		if !idle(uid) {
			return 0, busy
		}
		// A refusal must not cost the user the present place.
		if err := r.fits(uid, limits.Restrict(at), true); err != nil {
			return 0, err
		}
		if evict(uid) != nil {
			return 0, busy
		}
	}
	if err := r.give(uid, ration, rule, at, true, why); err != nil {
		return 0, err
	}
	return at, keepAsked(uid, asked)
}

// hiddenByRun is the value of region.Limits.Hidden for a device of the user's place that a run does not use.
const hiddenByRun = 2

// restrictRun restricts the limits of a run to the devices that the user's job sees, or to as many of them
// as it asks for: those with most free of the ration, of which the user's job, with limits users, holds what held says. It is
// an error if the run names another device.
func (r *rations) restrictRun(limits *region.Limits, asked askedRun, users region.Limits, held [abi.Devices]uint64) (why string, err error) {
	at := users.Visible()
	for d := range abi.Devices {
		if !at.Has(d) && asked.Names(d) {
			return "", fmt.Errorf("%w: it names GPU %d, and your ration is on %v (ration policy show)", ErrRun, d, at)
		}
	}
	*limits = limits.Restrict(at)
	if !asked.Devices.IsSet() || asked.Devices == limit.AllDevices {
		return "", nil
	}
	among, of := at, ""
	if asked.visible != nil && r.driver != nil {
		among = launch.DevicesIn(*asked.visible, r.driver.Devices, at)
	}
	var all []launch.Candidate
	for d, total := range r.totals() {
		if !at.Has(d) || !limits.MayUse(d) {
			continue
		}
		if !among.Has(d) {
			of = ", of those in CUDA_VISIBLE_DEVICES"
			continue
		}
		left := uint64(total)
		if users.Memory[d].Limited() {
			left = users.Memory[d].Bytes()
		}
		c := launch.Candidate{Device: d, Free: int64(left - min(held[d], left))}
		c.Full = int64(limits.Memory[d].Bytes()) > c.Free
		all = append(all, c)
	}
	n := int(asked.Devices)
	if n > len(all) {
		return "", fmt.Errorf("%w: it asks for %s, and your ration has %d left that it may use%s (ration ps)", ErrRun, humanfmt.Plural(n, "GPU", "GPUs"), len(all), of)
	}
	on, why := launch.Choose(n, all, "of the ration free")
	*limits = limits.Restrict(on)
	for d := range abi.Devices {
		if at.Has(d) && !on.Has(d) {
			limits.Hidden[d] = hiddenByRun
		}
	}
	return why + of, nil
}
