package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// shortfall is the error for a user with a job whose rule has more than there is room for. It matches ErrOverbooked. The user
// keeps what it had of that, and has the rest of the rule.
type shortfall struct{ error }

func (e shortfall) Unwrap() error { return e.error }

func isShortfall(err error) bool { return errors.As(err, &shortfall{}) }

// adjust is give for the ration of the user's rule. If there is no room for all of it and the user has a job, the error is a
// shortfall.
func (r *rations) adjust(uid int, ration limit.Limits, rule *Rule, at region.Place, takes bool, atWhy string) error {
	full := r.give(uid, ration, rule, at, takes, atWhy)
	if !errors.Is(full, ErrOverbooked) || !usable(uid) || lent(uid) {
		return full
	}
	limits, err := r.limitsOf(ration)
	if err != nil {
		return err
	}
	now, err := region.LimitsBeside(jobOf(uid).Path)
	if err != nil {
		return err
	}
	limits = r.within(r.staying(uid, r.wanted(ration), limits, now.Visible()), now, r.beside(uid))
	if err := r.set(uid, rule, limits); err != nil {
		return errors.Join(full, err)
	}
	return shortfall{full}
}

// checkGrowth returns an error if limits are more than a user's job and runs have, and others wait. A ration that is lent
// returns by rules of its own.
func (r *rations) checkGrowth(uid int, limits region.Limits) error {
	turn := r.checkTurn(uid, true)
	if turn == nil || !usable(uid) || lent(uid) {
		return nil
	}
	now, err := region.LimitsBeside(jobOf(uid).Path)
	if err != nil {
		return err
	}
	b := r.beside(uid)
	if limits = limits.Restrict(now.Visible()); b.most(limits, now) == limits {
		return nil
	}
	return turn
}

// ensureUsable is ensure for a user who has a job. A user without one gets the whole ration with the next job.
func (r *rations) ensureUsable(uid int) error {
	if !usable(uid) || checkInForce() != nil {
		return nil
	}
	err := r.ensure(uid)
	switch {
	case !isShortfall(err):
		return err
	case r.unread:
		return errUnread // there may be room
	}
	return nil // the user has what it had
}

// most returns limits with no more memory and no larger shares than now, those of the user's job, and the user's runs have.
func (b *beside) most(limits, now region.Limits) region.Limits {
	for d := range abi.Devices {
		if now.Memory[d].Limited() && (!limits.Memory[d].Limited() || b.growsOn(d, limits)) {
			limits.Memory[d] = abi.MakeLimit(b.has.Memory[d])
		}
		if has := b.has.Share[d]; uint64(abi.Percent(limits.Compute[d])) > has {
			limits.Compute[d] = has
		}
	}
	return limits
}

// within is most, but with more where there is room for it, and no others wait. Nobody loses a ration for it.
func (r *rations) within(limits, now region.Limits, b beside) region.Limits {
	out := b.most(limits, now)
	if r.checkTurn(b.uid, true) != nil || r.mustLook() {
		return out
	}
	for d := range r.totals() {
		memory, share := out, out
		memory.Memory[d] = limits.Memory[d]
		if r.checkBeside(memory.Restrict(region.PlaceAt(d)), b, nil) == nil {
			out, share = memory, memory
		}
		share.Compute[d] = limits.Compute[d]
		if share.MayUse(d) && r.checkBeside(share.Restrict(region.PlaceAt(d)), b, nil) == nil {
			out = share
		}
	}
	return out
}

// set changes the limits of a user's job and runs to those of a ration.
func (r *rations) set(uid int, rule *Rule, limits region.Limits) error {
	limits, err := r.divide(uid, rule, limits)
	if err != nil {
		return err
	}
	returned := lent(uid)
	if err := setLimits(uid, limits); err != nil {
		return err
	}
	r.ended = slices.DeleteFunc(r.ended, func(o booked) bool { return o.uid == uid }) // the job has their part again
	if returned {
		_ = job.SettleDenied(uid)
	}
	if err := job.Relabel(jobOf(uid), rule.labels()); err != nil {
		return err
	}
	return endExemption(uid)
}

func endExemption(uid int) error {
	err := os.Remove(filepath.Join(folderOf(uid), job.ExemptName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rationing user %d: %w", uid, err)
	}
	return nil
}
