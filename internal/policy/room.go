package policy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
)

// Where a policy does not overbook, the rations of users fit on the devices.

// fits returns an error for limits that do not fit beside those of other users, where the policy
// does not overbook. Users who have no process make room, unless the file names them: if that helps,
// as many as it takes, and otherwise none.
func (r *rations) fits(uid int, l region.Limits) error {
	if r.policy.Overbook {
		return nil
	}
	busy := map[int]bool{uid: true} // whose jobs stay
	for {
		all := r.bookedByOthers(uid)
		room := func(without []int) error { return r.room(uid, l, all, without) }
		if room(nil) == nil {
			return nil
		}
		leave, err := makeRoom(r.idle(busy), room)
		if err != nil {
			return err
		}
		for _, other := range leave {
			if job.Remove(jobOf(other), true) != nil { // a process has come in meanwhile
				busy[other] = true
			}
		}
	}
}

// idle returns users whose jobs may go, as no process is in them, but for some users.
func (r *rations) idle(but map[int]bool) (uids []int) {
	for _, other := range Users() {
		if but[other] {
			continue
		}
		// Who cannot be told from a user whom the file names stays.
		rule, err := r.policy.For(other)
		if err != nil || rule == nil || rule.Exempt || strings.HasPrefix(rule.Source, "users.") {
			continue
		}
		if _, err := os.Lstat(job.OfUserPath(other)); err == nil && job.CheckRemovable(jobOf(other), true) == nil {
			uids = append(uids, other)
		}
	}
	return uids
}

// makeRoom returns which of the idle users have to leave, so that there is room: none of them needlessly.
// It returns the error of room, and nobody, where there is none without all of them either.
func makeRoom(idle []int, room func(without []int) error) (leave []int, err error) {
	if err := room(idle); err != nil {
		return nil, err
	}
	leave = idle
	for _, uid := range idle {
		rest := slices.DeleteFunc(slices.Clone(leave), func(other int) bool { return other == uid })
		if room(rest) == nil {
			leave = rest
		}
	}
	return leave, nil
}

// booked is a job, or a run, of a user's with its limits.
type booked struct {
	uid    int
	run    bool
	limits region.Limits
}

// bookedByOthers returns what all users but one have.
func (r *rations) bookedByOthers(uid int) (out []booked) {
	for _, other := range Users() {
		if other == uid {
			continue
		}
		if l, err := readLimits(jobOf(other).Path); err == nil {
			out = append(out, booked{other, false, l})
		}
		for _, run := range job.RunsOf(other) {
			if l, err := readLimits(run.Path); err == nil {
				out = append(out, booked{other, true, l})
			}
		}
	}
	return out
}

// room returns an error where the limits and those of all other users are more than a device has.
// The jobs of some users are left out, but not their runs.
func (r *rations) room(uid int, l region.Limits, others []booked, without []int) error {
	for d, total := range r.totals() {
		memory, share := l.Memory[d].Bytes(), uint64(abi.Percent(l.Compute[d]))
		for i := range others {
			if o := &others[i]; o.run || !slices.Contains(without, o.uid) {
				memory, share = memory+o.limits.Memory[d].Bytes(), share+o.limits.Compute[d]
			}
		}
		if memory > uint64(total) {
			return fmt.Errorf("%w: with %s for user %s the rations of device %d would be %s, and it has %s (overbook = true in %s allows it)",
				ErrOverbooked, limit.Size(l.Memory[d].Bytes()), proc.UserName(uid), d, limit.Size(memory), total, ConfigFile)
		}
		if share > 100 {
			return fmt.Errorf("%w: with %d %% for user %s the shares of device %d would be %d %% (overbook = true in %s allows it)",
				ErrOverbooked, abi.Percent(l.Compute[d]), proc.UserName(uid), d, share, ConfigFile)
		}
	}
	return nil
}

// CheckRoom returns what is wrong with the rations of users whom the file names, taken together:
// where the policy does not overbook they must fit on the devices.
func (p *Policy) CheckRoom(file string) error {
	driver, missing := launch.KnownDevices()
	if missing != nil && !errors.Is(missing, gpu.ErrNoDriver) {
		return missing
	}
	if driver != nil {
		defer driver.Close()
	}
	r := &reader{file: file, at: map[string]unstable.Position{}}
	r.locate(p.Text)
	machine := &rations{policy: p, driver: driver, missing: missing}
	rules := make([]*Rule, 0, len(p.Users))
	for _, all := range []map[string]*Rule{p.Users, p.Groups, {"": p.Everybody}} {
		for _, rule := range all {
			rules = append(rules, rule)
		}
	}
	slices.SortFunc(rules, func(a, b *Rule) int { return a.line - b.line })
	var memory, share [abi.Devices]uint64
	for _, rule := range rules {
		if rule.Exempt {
			continue
		}
		path := strings.Replace(rule.Source, ".", "\x00", 1)
		limits, err := machine.limitsOf(rule.Default)
		if err == nil {
			_, err = machine.limitsOf(rule.Largest)
		}
		if err != nil {
			r.problem(path, "%s: %v", rule.Source, err)
			continue
		}
		if p.Overbook || !strings.HasPrefix(rule.Source, "users.") {
			continue
		}
		for d, total := range machine.totals() {
			memory[d] += limits.Memory[d].Bytes()
			share[d] += uint64(abi.Percent(limits.Compute[d]))
			if memory[d] > uint64(total) {
				r.problem(path+"\x00memory", "%s: the rations of users who are named come to %s of device %d here, which has %s (overbook = true allows it)", rule.Source, limit.Size(memory[d]), d, total)
				break
			}
			if share[d] > 100 {
				r.problem(path+"\x00compute", "%s: the shares of users who are named come to %d %% of device %d here (overbook = true allows it)", rule.Source, share[d], d)
				break
			}
		}
	}
	return r.err()
}
