package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

// partName is the file, in the folder of a run, with the run's part of the ration. The limits of the run are less while the
// ration has not that much.
const partName = "part"

func partPath(run job.Job) string { return filepath.Join(filepath.Dir(run.Path), partName) }

// keepPart records the part of a run.
func keepPart(run job.Job, part region.Limits) error {
	text, err := json.Marshal(part)
	if err == nil {
		err = safepath.Replace(partPath(run), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("recording the part of run %s: %w", run.Name, err)
	}
	return nil
}

// partOfRun returns what a run has when the ration has enough. has are its limits.
func partOfRun(run job.Job, has region.Limits) region.Limits {
	var part region.Limits
	if text, err := os.ReadFile(partPath(run)); err != nil || json.Unmarshal(text, &part) != nil {
		return has
	}
	has.Memory, has.Compute, has.ComputeMax = part.Memory, part.Compute, part.ComputeMax
	return has
}

// smaller returns the smaller limits of two, for each device and kind. All else is that of a.
func smaller(a, b region.Limits) region.Limits {
	for d := range abi.Devices {
		if b.Memory[d].Limited() && (!a.Memory[d].Limited() || b.Memory[d] < a.Memory[d]) {
			a.Memory[d] = b.Memory[d]
		}
		a.Compute[d] = uint64(min(abi.Percent(a.Compute[d]), abi.Percent(b.Compute[d])))
		if most := abi.Percent(b.ComputeMax[d]); most != 0 && (abi.Percent(a.ComputeMax[d]) == 0 || most < abi.Percent(a.ComputeMax[d])) {
			a.ComputeMax[d] = b.ComputeMax[d]
		}
	}
	return a
}

// take subtracts the limits of a run from left, the rest of a ration, and returns them. If left is
// smaller than the run, the run gets all of left.
func take(left *region.Limits, run region.Limits) region.Limits {
	for d := range abi.Devices {
		if left.Memory[d].Limited() {
			has := left.Memory[d].Bytes()
			if !run.Memory[d].Limited() || run.Memory[d].Bytes() > has {
				run.Memory[d] = abi.MakeLimit(has)
			}
			left.Memory[d] = abi.MakeLimit(has - run.Memory[d].Bytes())
		}
		share := uint64(abi.Percent(left.Compute[d]))
		run.Compute[d] = min(uint64(abi.Percent(run.Compute[d])), share)
		left.Compute[d] = share - run.Compute[d]
		// One per cent is the smallest cap.
		if most := uint64(abi.Percent(left.ComputeMax[d])); most != 0 {
			if now := uint64(abi.Percent(run.ComputeMax[d])); now == 0 || now >= most {
				run.ComputeMax[d] = max(most-1, 1)
			}
			left.ComputeMax[d] = max(most-min(run.ComputeMax[d], most), 1)
		}
	}
	return run
}

// divide returns the rest of a ration for the user's own job, after the parts of the user's runs. If the runs
// exceed the ration, it lowers the limits of the youngest. It lowers a priority that the rule does not
// allow any more.
func (r *rations) divide(uid int, rule *Rule, ration region.Limits) (left region.Limits, err error) {
	left = ration
	for _, run := range job.RunsOf(uid) {
		// The service died while it created or removed this run, which may have limits.
		if _, is := ready(run); !is {
			if err := r.endRun(run); err != nil {
				return left, err
			}
		}
	}
	raise := map[string]region.Limits{} // by the path of the run
	for _, run := range readyRuns(uid) {
		has, err := region.LimitsBeside(run.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return left, fmt.Errorf("reading the limits of run %s: %w", run.Name, err)
		}
		if limit.Priority(has.Priority).Above(rule.Largest.Priority) {
			has.Priority = uint64(rule.Largest.Priority)
		}
		will := take(&left, partOfRun(run, has))
		if err := setLimitsAt(run.Path, smaller(has, will)); err != nil {
			return left, err
		}
		raise[run.Path] = will
	}
	if now, err := region.LimitsBeside(job.OfUserPath(uid)); err == nil {
		if err := setLimits(uid, smaller(now, left)); err != nil {
			return left, err
		}
	}
	for path, will := range raise {
		if err := setLimitsAt(path, will); err != nil {
			return left, err
		}
	}
	return left, nil
}

// move lowers the limits of a user's job from before to after. Then it records the part of a run, and raises its limits from has.
// It fails if the user's job holds more than its lower limits.
func (r *rations) move(uid int, run job.Job, before, after, has, limits, part region.Limits) error {
	if err := setLimits(uid, after); err != nil {
		return errors.Join(err, setLimits(uid, before))
	}
	passed("lowered")
	if err := checkHeld(uid, before, after); err != nil {
		return errors.Join(err, setLimits(uid, before))
	}
	passed("checked")
	if err := keepPart(run, part); err != nil {
		return errors.Join(err, setLimits(uid, before))
	}
	passed("kept")
	if err := setLimitsAt(run.Path, limits); err != nil {
		// Some limits of the run may be set already. The user's job gets nothing back until they
		// are what they were.
		if err2 := errors.Join(setLimitsAt(run.Path, has), keepPart(run, has)); err2 != nil {
			return errors.Join(err, err2)
		}
		return errors.Join(err, setLimits(uid, before))
	}
	return nil
}

// heldIn returns how much of each device a job holds, given the path of its region. With fence no request is granted
// afterwards under limits of before.
func heldIn(path string, fence bool) (held [abi.Devices]uint64, err error) {
	g, err := region.Open(path, region.Options{NoCreate: true, AnyOwner: true})
	if err != nil {
		return held, fmt.Errorf("%w: the job cannot be read: %w", ErrRun, err)
	}
	defer g.Close()
	for d := range abi.Devices {
		if fence {
			held[d], err = g.Fence(d)
		} else {
			held[d], _, err = g.Usage(d)
		}
		if err != nil {
			return held, fmt.Errorf("%w: the job cannot be read: %w", ErrRun, err)
		}
	}
	return held, nil
}

// covers reports whether what is held is within limits.
func covers(l region.Limits, held [abi.Devices]uint64) bool {
	for d := range abi.Devices {
		if l.Memory[d].Limited() && held[d] > l.Memory[d].Bytes() {
			return false
		}
	}
	return true
}

// overHeld is the error for a run that does not get memory that its user's other programs hold.
type overHeld struct {
	device    int
	held, has limit.Size // by the user's job, and its limit
	user      string     // whose run it is, for root; empty for that user
	run       limit.Size // what the run has already
}

func (e *overHeld) Error() string {
	programs, how := "your other programs", "ask for less: --mem "
	if e.user != "" {
		programs, how = "the other programs of "+e.user, "give it at most "
	}
	less := ""
	if free := e.has - min(e.held, e.has); free >= leastUseful {
		less = ", or " + how + ((free + e.run) >> 20 << 20).Exact()
	}
	return fmt.Sprintf("%v: %s hold %s of the %s on GPU %d that no run has (end some%s)",
		ErrRun, programs, humanfmt.Bytes(uint64(e.held)), humanfmt.Bytes(uint64(e.has)), e.device, less)
}

func (e *overHeld) Unwrap() error { return ErrRun }

// checkHeld returns an overHeld, as a heldError, if a user's job holds more than after, the limits that have just been lowered
// for a run. After region.Fence, no request is granted under the old limits.
func checkHeld(uid int, before, after region.Limits) error {
	all, err := heldIn(job.OfUserPath(uid), true)
	if err != nil {
		return err
	}
	for d, held := range all {
		if after.Memory[d].Limited() && after.Memory[d] != before.Memory[d] && held > after.Memory[d].Bytes() {
			return heldError{&overHeld{device: d, held: limit.Size(held), has: limit.Size(before.Memory[d].Bytes())}}
		}
	}
	return nil
}

// Resize changes the part of a run, given the path of its region. What it gets more comes from the user's job, which must not
// hold it. What it gets less is the job's, unless the run holds it still: then when the ration is divided again.
func Resize(path string, changes ...func(*region.Limits)) error {
	lookAround()
	driver, missing := devices() // a driver that hangs must not keep users from the service
	lock, err := lockJobs()
	if err != nil {
		return err
	}
	defer lock.Close()
	p, err := InForce()
	if err != nil {
		return err
	}
	r, err := p.openWith(driver, missing, func(string) {})
	if err != nil {
		return err
	}
	defer r.close()
	return r.resize(job.Job{Name: filepath.Base(filepath.Dir(path)), Path: path}, changes)
}

// reapTime bounds how long memory of dead processes is returned to the user's job, before a run is resized.
const reapTime = 500 * time.Millisecond

// resize is Resize with the lock of lockJobs.
func (r *rations) resize(run job.Job, changes []func(*region.Limits)) error {
	uid, _, _ := job.RunOf(run.Name)
	if g, err := region.Open(job.OfUserPath(uid), region.Options{NoCreate: true, AnyOwner: true}); err == nil {
		// What dead processes held is nobody's; what is held is looked at later. All users wait meanwhile.
		_, _ = g.ReapWhile(safepath.RealClock.For(reapTime).Left)
		_ = g.Close()
	}
	if err := r.ensure(uid); err != nil && !isShortfall(err) { // all that no run has is the job's
		return err
	}
	before, err := region.LimitsBeside(job.OfUserPath(uid))
	has, err2 := region.LimitsBeside(run.Path)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	was, all := partOfRun(run, has), before
	part := was
	for _, change := range changes {
		change(&part)
	}
	for d := range abi.Devices {
		if all.Memory[d].Limited() {
			all.Memory[d] = abi.MakeLimit(before.Memory[d].Bytes() + has.Memory[d].Bytes())
		}
		all.Compute[d] = uint64(abi.Percent(before.Compute[d]) + abi.Percent(has.Compute[d]))
		if most := abi.Percent(before.ComputeMax[d]); most != 0 {
			all.ComputeMax[d] = uint64(most + abi.Percent(has.ComputeMax[d]))
		}
	}
	after := all
	to := take(&after, part)
	for d := range abi.Devices {
		if part.Memory[d] != was.Memory[d] && part.Memory[d] != to.Memory[d] {
			return fmt.Errorf("%w: the ration of %s has %s on GPU %d that no other run has (a rule in %s gives a larger ration)",
				ErrTooMuch, proc.UserName(uid), memoryText(all.Memory[d]), d, ConfigFile)
		}
		changed := func(was, part, to uint64) bool {
			return abi.Percent(part) != abi.Percent(was) && abi.Percent(part) != abi.Percent(to)
		}
		if changed(was.Compute[d], part.Compute[d], to.Compute[d]) || changed(was.ComputeMax[d], part.ComputeMax[d], to.ComputeMax[d]) {
			return fmt.Errorf("%w: the ration of %s has less of the time of GPU %d that no other run has (a rule in %s gives a larger ration)",
				ErrTooMuch, proc.UserName(uid), d, ConfigFile)
		}
	}
	low := smaller(has, to)
	if err := setLimitsAt(run.Path, low); err != nil {
		return err
	}
	passed("resize-lowered")
	err = r.move(uid, run, before, smaller(before, after), low, to, part)
	var over *overHeld
	if errors.As(err, &over) {
		over.user, over.run = proc.UserName(uid), limit.Size(low.Memory[over.device].Bytes())
	}
	if err != nil {
		return errors.Join(err, setLimitsAt(run.Path, has), keepPart(run, was))
	}
	r.ended = append(r.ended, booked{uid, true, minus(has, to)}) // nobody else gets it
	if held, err := heldIn(run.Path, true); err == nil && covers(to, held) {
		return r.ensureUsable(uid)
	}
	return nil
}

// minus returns by how much the memory and the shares of a are more than those of b.
func minus(a, b region.Limits) (out region.Limits) {
	for d := range abi.Devices {
		has, less := a.Memory[d].Bytes(), b.Memory[d].Bytes()
		out.Memory[d] = abi.MakeLimit(has - min(has, less))
		share, lower := uint64(abi.Percent(a.Compute[d])), uint64(abi.Percent(b.Compute[d]))
		out.Compute[d] = share - min(share, lower)
	}
	return out
}
