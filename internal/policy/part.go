package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"ration/internal/abi"
	"ration/internal/job"
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

// Resize changes the part of a run, given the path of its region. What it gets more comes from the user's job, which must not
// hold it. What it gets less is the job's when the ration is divided again: the run may hold it still.
func Resize(path string, changes ...func(*region.Limits)) error {
	lookAround()
	lock, err := lockJobs()
	if err != nil {
		return err
	}
	defer lock.Close()
	p, err := InForce()
	if err != nil {
		return err
	}
	r, err := p.open(func(string) {})
	if err != nil {
		return err
	}
	defer r.close()
	return r.resize(job.Job{Name: filepath.Base(filepath.Dir(path)), Path: path}, changes)
}

// resize is Resize with the lock of lockJobs.
func (r *rations) resize(run job.Job, changes []func(*region.Limits)) error {
	uid, _, _ := job.RunOf(run.Name)
	if err := r.ensure(uid); err != nil && !isShortfall(err) { // all that no run has is the job's
		return err
	}
	before, err := readLimits(job.OfUserPath(uid))
	has, err2 := readLimits(run.Path)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	to, all := has, before
	for _, change := range changes {
		change(&to)
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
	got := take(&after, to)
	for d := range abi.Devices {
		if got.Memory[d] != to.Memory[d] {
			return fmt.Errorf("%w: the ration of %s has %s on GPU %d that no other run has (a rule in %s gives a larger ration)",
				ErrTooMuch, proc.UserName(uid), memoryText(all.Memory[d]), d, ConfigFile)
		}
		if abi.Percent(got.Compute[d]) != abi.Percent(to.Compute[d]) || abi.Percent(got.ComputeMax[d]) != abi.Percent(to.ComputeMax[d]) {
			return fmt.Errorf("%w: the ration of %s has less of the time of GPU %d that no other run has (a rule in %s gives a larger ration)",
				ErrTooMuch, proc.UserName(uid), d, ConfigFile)
		}
	}
	low := smaller(has, to)
	if err := setLimitsAt(run.Path, low); err != nil {
		return err
	}
	passed("resize-lowered")
	if less := smaller(before, after); less != before {
		return r.move(uid, run, before, less, low, to, "the other programs of "+proc.UserName(uid))
	}
	return errors.Join(keepPart(run, to), setLimitsAt(run.Path, to))
}
