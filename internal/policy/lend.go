package policy

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// A job that sleeps needs none of its ration until it wakes. The service lends it to users that need it: it sets the limits
// of memory of the job to 0. PROTOCOL.md (*Lending*) gives the invariant and the steps. Callers of these functions hold
// the lock of lockJobs.

// isLent reports whether limits are those of a job whose ration is lent: it has nothing of the devices that it sees.
func isLent(l *region.Limits) bool {
	lent := false
	for d := range abi.Devices {
		switch m := l.Memory[d]; {
		case l.Hidden[d] != 0 || !m.IsSet():
		case l.MayUse(d):
			return false
		default:
			lent = true
		}
	}
	return lent
}

// lent reports whether the ration of a user's job is lent. Runs of the user may have all of a ration, too.
func lent(uid int) bool {
	l, err := region.LimitsBeside(job.OfUserPath(uid))
	return err == nil && isLent(&l) && len(job.RunsOf(uid)) == 0
}

var errAwake = errors.New("the job sleeps no more")

// lend lends the ration of a job that sleeps. It is an error if the job holds memory or is awake, or if a process has been
// promised that it may wake.
func lend(uid int) error {
	if job.Running(jobOf(uid)) {
		return job.ErrInUse
	}
	passed("lending")
	before, err := region.LimitsBeside(job.OfUserPath(uid))
	if err != nil {
		return err
	}
	after := before
	for d := range abi.Devices {
		if after.Memory[d].Limited() {
			after.Memory[d] = abi.MakeLimit(0)
		}
	}
	if err := setLimits(uid, after); err != nil {
		return errors.Join(err, setLimits(uid, before))
	}
	passed("lent")
	// A wake charges all memory before it brings it back. So if nothing is held now, a later wake finds no room; and an
	// earlier one shows in what the job says.
	held, err := heldIn(job.OfUserPath(uid), true)
	if err == nil && !covers(after, held) {
		err = job.ErrInUse
	}
	if err == nil && !saysAsleep(uid) {
		err = errAwake
	}
	if err != nil {
		return errors.Join(err, setLimits(uid, before))
	}
	passed("lend-checked")
	return nil
}

// removeLent removes the jobs without processes whose ration is lent: nothing is left that could wake, and the user's next
// program asks for a ration as any other.
func (k *keeper) removeLent() {
	gone := func(uid int) bool { return lent(uid) && idle(uid) }
	if !slices.ContainsFunc(Users(), gone) {
		return
	}
	err := k.withRations(nil, func(*rations) error {
		for _, uid := range slices.DeleteFunc(Users(), func(uid int) bool { return !gone(uid) }) {
			if err := evict(uid); err != nil && !errors.Is(err, job.ErrLiving) && !errors.Is(err, job.ErrInUse) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		k.log.Error("removing a job that has lent its ration", "error", err)
	}
}

// sleepers returns the users whose jobs sleep and whose rations can be lent, except users in keep and users that the file
// names. A user who does not wait for a ration could not wait to wake.
func (r *rations) sleepers(keep map[int]bool) (uids []int) {
	for _, uid := range Users() {
		if !keep[uid] && r.mayLend(uid) && !lent(uid) && saysAsleep(uid) {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 || r.mustLook() {
		return nil
	}
	return slices.DeleteFunc(uids, func(uid int) bool { return !r.seen.asleep[job.OfUserPath(uid)] })
}

// mayLend reports whether a user's ration can be lent while the job sleeps.
func (r *rations) mayLend(uid int) bool {
	rule, err := r.policy.For(uid)
	l, err2 := region.LimitsBeside(job.OfUserPath(uid))
	return err == nil && rule != nil && !rule.Exempt && rule.Waits && !strings.HasPrefix(rule.Source, "users.") && len(job.RunsOf(uid)) == 0 &&
		err2 == nil && !slices.ContainsFunc(l.Memory[:], func(m abi.Limit) bool { return m.IsSet() && !m.Limited() }) // as it would not be isLent
}

// saysAsleep reports whether a user's region says that the job sleeps. The user can write the region, so this is only a claim.
func saysAsleep(uid int) bool {
	g, err := region.OpenReadOnly(job.OfUserPath(uid))
	if err != nil {
		return false
	}
	defer g.Close()
	word, err := g.Sleep()
	return err == nil && word.State() == abi.Asleep
}

// staysFor is how long a ration that could not be taken back is left alone.
const staysFor = time.Second

// yielding returns the users that can give up their rations for others. Those whose jobs sleep come first: as few of them
// as possible lose theirs. A ration that could not be taken back a moment ago counts as one in use: its user can hold a promise
// for ever, or say of a job that sleeps that it has memory. Others would wait for its room, and none would be made elsewhere.
func (r *rations) yielding(keep map[int]bool) []int {
	keep = maps.Clone(keep)
	for uid, at := range r.stays {
		if time.Since(at) < staysFor {
			keep[uid] = true
		} else {
			delete(r.stays, uid)
		}
	}
	idle := r.removable(keep)
	sleepers := slices.DeleteFunc(r.sleepers(keep), func(uid int) bool { return slices.Contains(idle, uid) })
	return append(sleepers, idle...)
}

// takeBack takes back the ration of a user in yielding: all of the job if it has no process, or as lend does if it sleeps.
// A process may have joined the job since.
func (r *rations) takeBack(uid int) (evicted bool, err error) {
	if !idle(uid) && r.mayLend(uid) && saysAsleep(uid) {
		return false, lend(uid)
	}
	return true, evict(uid)
}

// wake gives a job whose ration is lent its ration back, so that it can wake. The client may wait for that. held is a
// promise: the ration is not lent again before the client has closed it.
func (r *rations) wake(uid int, waits bool) (held *os.File, err error) {
	if lent(uid) {
		var at region.Place
		if len(r.totals()) > 1 { // others may have room elsewhere, and can pass
			at, _ = placed(uid)
		}
		if waits {
			err = r.ensureOrWait(&mustWait{uid: uid, at: at})
		} else {
			err = r.ensureNow(uid, at)
		}
		if err == nil {
			r.say(uid, "the job of %s has its ration again, to wake", proc.UserName(uid))
		}
	}
	if err != nil {
		return nil, err
	}
	return promise(uid)
}

// wholeRation returns the limits of a user's ration on the devices where the user has a job, or else on all. want is on
// how many devices it is to be placed; 0 if it has its place, or is for all.
func (r *rations) wholeRation(uid int) (l region.Limits, want int, err error) {
	ration, _, err := r.rationOf(uid)
	if err == nil {
		l, err = r.limitsOf(ration)
	}
	if at, is := placed(uid); is {
		return l.Restrict(at), 0, err
	}
	return l, r.wanted(ration), err
}

// hasRoom reports whether the ration of a user with a job fits beside those of others, without taking back any.
func (r *rations) hasRoom(uid int) bool {
	l, _, err := r.wholeRation(uid)
	return err == nil && (r.policy.Overbook || r.checkBeside(l, r.beside(uid), nil) == nil)
}

// firstIsStuck reports whether there is no room for the first user in the queue, as far as is known. Then a job whose ration is
// lent may wake before that user: otherwise a user could keep it from waking by waiting for more than there can be.
func (r *rations) firstIsStuck() bool {
	all, err := job.Queue(job.Folder())
	return err == nil && len(all) > 0 && all[0].UID > 0 && !r.roomFor(all[0].UID)(nil) && !r.unread
}

// room returns the devices on which a user can have the ration now, if necessary after taking back those of others.
func (r *rations) room(uid int) (at region.Place, err error) {
	l, want, err := r.wholeRation(uid)
	if err != nil {
		return 0, err
	}
	beside, yielding := r.beside(uid), r.yielding(map[int]bool{uid: true})
	if r.mustLook() {
		return 0, errUnread
	}
	for _, c := range r.candidates(l, beside, yielding) {
		if !c.Full {
			at |= region.PlaceAt(c.Device)
		}
	}
	if len(at.Devices()) < want || want == 0 && !r.policy.Overbook && r.checkBeside(l, beside, yielding) != nil {
		at = 0
	}
	return at, nil
}

// roomFor returns a function that reports whether there is room for a user's ration, if necessary after taking back others,
// and those of more.
func (r *rations) roomFor(uid int) func(more []int) bool {
	l, want, err := r.wholeRation(uid)
	beside, yielding := r.beside(uid), r.yielding(map[int]bool{uid: true})
	_ = r.mustLook()
	return func(more []int) bool {
		without := slices.Concat(yielding, more)
		if err != nil || want == 0 {
			return err == nil && (r.policy.Overbook || r.checkBeside(l, beside, without) == nil)
		}
		fits := 0
		for _, c := range r.candidates(l, beside, without) {
			if !c.Full {
				fits++
			}
		}
		return fits >= want
	}
}
