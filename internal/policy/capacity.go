package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

// Without overbook = true, the rations of all users together must fit on the devices.

// fits returns ErrOverbooked for limits that do not fit beside those of other users. With takes it may, to make them
// fit, take back rations of users that the file does not name, whose jobs have no process and no promise, or sleep:
// as few as necessary, and none if that would not be enough.
func (r *rations) fits(uid int, l region.Limits, takes bool) error {
	if r.policy.Overbook {
		return nil
	}
	keep := map[int]bool{uid: true}
	for {
		b := r.beside(uid)
		check := func(without []int) error { return r.checkBeside(l, b, without) }
		var lose []int
		if check(nil) != nil {
			var yielding []int
			if takes {
				yielding = r.yielding(keep)
			}
			var err error
			if lose, err = fewest(yielding, check); err != nil {
				var room *noRoom
				if errors.As(err, &room) {
					room.has = limit.Size(b.has.Memory[room.device])
				}
				return err
			}
		}
		if b.grows(l) && r.mustLook() {
			return errUnread // before anybody loses a ration for what may not fit
		}
		if len(lose) == 0 {
			return nil
		}
		for _, other := range lose {
			passed("taking-back")
			evicted, err := r.takeBack(other)
			if err != nil { // a process has joined the job since, or is about to; or the job wakes
				keep[other], r.stays[other] = true, time.Now()
			} else {
				r.taken = append(r.taken, other)
				r.sayTaken(uid, other, evicted)
			}
		}
	}
}

// IdleUsers returns the users whose rations TakeBack can take back.
func IdleUsers() []int {
	p, err := InForce()
	if err != nil {
		return nil
	}
	return (&rations{policy: p}).removable(nil)
}

// TakeBack takes back the ration of a user for a command of root's, if the user has no program and the file does not name the
// user. It is an error otherwise.
func TakeBack(uid int) error {
	lock, err := lockJobs()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := keepLeaving(); err != nil {
		return err
	}
	if !slices.Contains(IdleUsers(), uid) {
		return job.ErrInUse
	}
	return evict(uid)
}

// removable returns the users whose jobs are idle, except users in keep and users that the file names. If the look-up of a user failed, the job stays, because the file may name its owner.
func (r *rations) removable(keep map[int]bool) (uids []int) {
	for _, uid := range Users() {
		if keep[uid] {
			continue
		}
		rule, err := r.policy.For(uid)
		if err != nil || rule == nil || rule.Exempt || strings.HasPrefix(rule.Source, "users.") {
			continue
		}
		if safepath.Exists(job.OfUserPath(uid)) && idle(uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// fewest returns a smallest set of users without which check returns nil. If check fails even
// without all users, it returns check's error.
func fewest(users []int, check func(without []int) error) ([]int, error) {
	if err := check(users); err != nil {
		return nil, err
	}
	needed := users
	for _, uid := range users {
		rest := slices.DeleteFunc(slices.Clone(needed), func(other int) bool { return other == uid })
		if check(rest) == nil {
			needed = rest
		}
	}
	return needed, nil
}

// booked is a user's job or run, with its limits.
type booked struct {
	uid    int
	run    bool
	limits region.Limits
}

// noRoom is the error for memory that does not fit beside the rations of other users. It matches
// ErrOverbooked.
type noRoom struct {
	device             int
	asked, held, total limit.Size
	outside            limit.Size         // what programs hold there in no ration
	roots              limit.Size         // what root's own jobs have there
	has                limit.Size         // what the user has there now
	holders            []job.DeniedHolder // largest first
	among              int                // number of devices of which the ration could be on any; 1 if it names its devices
}

// leastUseful is the smallest ration that a message tells a user to ask for. A context alone takes half of it on some devices.
const leastUseful = 1 << 30

func (e *noRoom) Error() string {
	less := ""
	if free := e.total - min(e.held+e.outside+e.roots, e.total); free >= leastUseful {
		round := 20 // to MiB, or to GiB if little is lost by that
		if free >= 4<<30 {
			round = 30
		}
		if free = free >> round << round; free > e.has {
			less = ", or ask for less: ration policy ask --mem " + free.Exact()
		}
	}
	where := fmt.Sprintf("on GPU %d:", e.device)
	if e.among > 1 {
		where = fmt.Sprintf("on any of %d GPUs: on GPU %d, which has most left,", e.among, e.device)
	}
	var holds []string
	if e.held > 0 || e.outside == 0 && e.roots == 0 {
		holds = append(holds, fmt.Sprintf("the rations of %s hold %s", humanfmt.Plural(len(e.holders), "other user", "other users"), humanfmt.Bytes(uint64(e.held))))
	}
	if e.roots > 0 {
		holds = append(holds, fmt.Sprintf("jobs of root hold %s", humanfmt.Bytes(uint64(e.roots))))
	}
	if e.outside > 0 {
		holds = append(holds, fmt.Sprintf("programs hold %s in no ration", humanfmt.Bytes(uint64(e.outside))))
	}
	return fmt.Sprintf("%v for %s %s %s of its %s (try again later%s)",
		ErrOverbooked, humanfmt.Bytes(uint64(e.asked)), where, strings.Join(holds, ", and "), humanfmt.Bytes(uint64(e.total)), less)
}

func (e *noRoom) Unwrap() error { return ErrOverbooked }

// holdersOf returns the users with rations on a device, the largest first. The jobs of the users in
// without do not count, but their runs do.
func holdersOf(device int, others []booked, without []int) (out []job.DeniedHolder) {
	for i := range others {
		o := &others[i]
		bytes := o.limits.Memory[device].Bytes()
		if bytes == 0 || !o.run && slices.Contains(without, o.uid) {
			continue
		}
		at := slices.IndexFunc(out, func(h job.DeniedHolder) bool { return h.UID == o.uid })
		if at < 0 {
			at = len(out)
			out = append(out, job.DeniedHolder{UID: o.uid, User: proc.UserName(o.uid)})
		}
		out[at].Held += bytes
	}
	slices.SortStableFunc(out, func(a, b job.DeniedHolder) int { return cmp.Compare(b.Held, a.Held) })
	return out
}

// checkBeside returns ErrOverbooked if the limits, together with those of others and what programs hold in no ration, exceed
// a device. The jobs of the users in without do not count, but their runs do.
func (r *rations) checkBeside(l region.Limits, b beside, without []int) error {
	held := b.booking(without)
	all := held
	all.Add(l)
	for d, total := range r.totals() {
		if !l.MayUse(d) {
			continue // what others have there is not in the way
		}
		if outside, roots := b.outside(d, l, without); all.Memory[d]+outside+roots > uint64(total) {
			return &noRoom{device: d, asked: limit.Size(l.Memory[d].Bytes()), held: limit.Size(held.Memory[d]), outside: limit.Size(outside), roots: limit.Size(roots), total: total, holders: holdersOf(d, b.booked, without), among: 1}
		}
		if all.Share[d] > 100 {
			return fmt.Errorf("%w for a share of %d %% of GPU %d: other users have %d %% (try again later, or ask for less: ration policy ask --compute)",
				ErrOverbooked, abi.Percent(l.Compute[d]), d, held.Share[d])
		}
	}
	return nil
}

// checkCapacity checks the rations of the users that the file names: without overbook = true they
// must fit on the devices together.
func (p *Policy) checkCapacity(file string) error {
	driver, missing := launch.KnownDevices()
	if missing != nil && !errors.Is(missing, gpu.ErrNoDriver) {
		return missing
	}
	if driver != nil {
		defer driver.Close()
	}
	p.NoDriver = driver == nil
	r := &reader{file: file, at: p.at}
	machine := &rations{policy: p, driver: driver, missing: missing}
	rules := append(byLine(p.Users), byLine(p.Groups)...)
	if p.Everybody != nil {
		rules = append(rules, p.Everybody)
	}
	slices.SortFunc(rules, func(a, b *Rule) int { return a.line - b.line })
	type user struct {
		*Rule
		limits region.Limits
	}
	var users []user
	for _, rule := range rules {
		if rule.Exempt || rule.broken {
			continue
		}
		path := rule.path
		limits, err := machine.limitsOf(rule.Default)
		if err != nil {
			r.problem(path, "%s: %v", rule.Source, err)
			continue
		}
		if _, err := machine.limitsOf(rule.Largest); err != nil {
			r.problem(path+"\x00largest", "%s: largest: %v", rule.Source, err)
			continue
		}
		if n, has := rule.Default.Devices, len(machine.totals()); n != limit.AllDevices && has > 0 && int(n) > has {
			r.problem(path+"\x00devices", "%s: devices = %d, and this machine has %s (use at most that, or \"all\")", rule.Source, int(n), humanfmt.Plural(has, "GPU", "GPUs"))
			continue
		}
		if !p.Overbook && strings.HasPrefix(rule.Source, "users.") {
			users = append(users, user{rule, limits})
		}
	}
	slices.SortStableFunc(users, func(a, b user) int { return largerFirst(a.limits, b.limits) })
	var all launch.Booking
	var named []booked
	for _, u := range users {
		path, rule, limits := u.path, u.Rule, u.limits
		if want := machine.wanted(rule.Default); want != 0 {
			at, _ := launch.Choose(want, machine.candidates(limits, beside{booked: named}, nil), inNoRation)
			limits = limits.Restrict(at)
		}
		named = append(named, booked{limits: limits})
		all.Add(limits)
		for d, total := range machine.totals() {
			if all.Memory[d] > uint64(total) {
				r.problem(path+"\x00memory", "%s: the rations of users who are named come to %s of device %d here, which has %s (overbook = true allows it)", rule.Source, limit.Size(all.Memory[d]), d, total)
				break
			}
			if all.Share[d] > 100 {
				r.problem(path+"\x00compute", "%s: the shares of users who are named come to %d %% of device %d here (overbook = true allows it)", rule.Source, all.Share[d], d)
				break
			}
		}
	}
	return r.err()
}

// largerFirst compares the rations of users by their memory. The larger one is placed first: a smaller one finds room beside it.
func largerFirst(a, b region.Limits) int {
	most := func(l region.Limits) (bytes uint64) {
		for d := range abi.Devices {
			if l.Memory[d].Limited() {
				bytes = max(bytes, l.Memory[d].Bytes())
			}
		}
		return bytes
	}
	return cmp.Compare(most(b), most(a))
}
