package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

// A run is a second job of a user, with a part of the user's ration: ration run --mem makes one
// under a policy. PROTOCOL.md gives the invariant, the steps, and the state after a crash between
// any two steps. Callers of these functions hold the lock of lockJobs.

// ErrRun is returned for a run that cannot be made.
var ErrRun = errors.New("no ration for this run")

// Bounds on the number of runs: each takes memory, and a thread of the service that waits for its end.
const (
	maxRunsOfUser = 16
	maxRuns       = 128
)

// passed is called between any two steps that change the limits of a run.
var passed = func(step string) {}

// OnStep replaces passed. It is for tests, which end the process there.
func OnStep(f func(step string)) { passed = f }

// runOf returns a run of a user's, which need not exist.
func runOf(uid int, name string) job.Job {
	full := job.RunOfUser(uid, name)
	return job.Job{Name: full, Path: filepath.Join(job.RootFolder, full, job.RegionName)}
}

// ready returns when a run was created. is is false if the run can have no process, because the
// service died while it created or removed the run.
func ready(run job.Job) (created int64, is bool) { return job.StandingSince(run) }

// readyRuns returns the runs of a user that can have processes, oldest first.
func readyRuns(uid int) []job.Job {
	made := map[string]int64{}
	runs := slices.DeleteFunc(job.RunsOf(uid), func(run job.Job) bool {
		created, is := ready(run)
		made[run.Name] = created
		return !is
	})
	slices.SortStableFunc(runs, func(a, b job.Job) int {
		if made[a.Name] < made[b.Name] {
			return -1
		}
		return 1
	})
	return runs
}

// nothing returns the smallest limits, for each device and kind that a ration limits.
func nothing(ration region.Limits) (out region.Limits) {
	out = ration
	for d := range abi.Devices {
		if out.Memory[d].Limited() {
			out.Memory[d] = abi.MakeLimit(0)
		}
		out.Compute[d], out.ComputeMax[d] = 0, min(out.ComputeMax[d], 1)
	}
	return out
}

// memoryText is a limit of memory in words.
func memoryText(l abi.Limit) string {
	if !l.Limited() {
		return "all"
	}
	return humanfmt.Bytes(l.Bytes())
}

// checkRun returns an error if the limits of a run exceed left: a ration, or what is left of it, which the error says with
// beside. It sets memory that the run does not ask for to 0. name is how the error names a device.
func checkRun(run *region.Limits, left region.Limits, beside, name func(device int) string) error {
	for d := range abi.Devices {
		has := left.Memory[d]
		switch asked := run.Memory[d]; {
		case !asked.IsSet() && has.Limited():
			run.Memory[d] = abi.MakeLimit(0)
		case has.Limited() && (!asked.Limited() || asked.Bytes() > has.Bytes()):
			return fmt.Errorf("%w: it asks for %s of %s, and your ration has %s there%s (ration policy show)", ErrRun, memoryText(asked), name(d), memoryText(has), beside(d))
		}
		if share, has := abi.Percent(run.Compute[d]), abi.Percent(left.Compute[d]); share > has {
			return fmt.Errorf("%w: it asks for a share of %d %% of %s, and your ration has %d %% left (ration policy show)", ErrRun, share, name(d), has)
		}
		most, has2 := abi.Percent(run.ComputeMax[d]), abi.Percent(left.ComputeMax[d])
		if has2 != 0 && (most == 0 || most >= has2) {
			return fmt.Errorf("%w: your ration has at most %d %% of the time of %s, and the run must leave a part to your other programs (as --compute-max %d%%)", ErrRun, has2, name(d), max(has2/2, 1))
		}
	}
	return nil
}

// handleRun makes a run of a user. held is the file whose lock keeps the run in use.
func (k *keeper) handleRun(r *rations, uid int, name string, words []string) (answer string, held *os.File, err error) {
	asked, err := parseRun(words)
	if err != nil {
		return "", nil, err
	}
	held, created, err := r.carve(uid, name, asked, false)
	if err != nil {
		return "", nil, err
	}
	k.noteRun(uid, name, asked.Limits)
	go k.awaitEnd(uid, runOf(uid, name), created)
	return fmt.Sprintf("ok %d\n", created), held, nil
}

// askedRun is a request for a run.
type askedRun struct {
	limit.Limits
	visible *string // the user's CUDA_VISIBLE_DEVICES; nil if it is not set, or the run is on all devices of the ration
	project string
}

// parseRun parses a request for a run.
func parseRun(words []string) (asked askedRun, err error) {
	var limits []string
	for _, word := range words {
		if list, is := strings.CutPrefix(word, launch.VisibleWord); is {
			asked.visible = &list
		} else if project, is := strings.CutPrefix(word, job.Project+"="); is {
			asked.project = project
		} else {
			limits = append(limits, word)
		}
	}
	asked.Limits, err = limit.ParseLimits(strings.Join(limits, " "))
	return asked, err
}

// couldCarve returns an error for a run that is larger than the user's whole ration, or on other devices: it would wait in
// vain. at is that of placeFor.
func (r *rations) couldCarve(uid int, words []string) (at region.Place, err error) {
	asked, err := parseRun(words)
	if err != nil {
		return 0, err
	}
	ration, _, err := r.rationOf(uid)
	if err != nil {
		return 0, err
	}
	whole, err := r.limitsOf(ration)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRun, err)
	}
	limits, err := r.partOf(asked.Limits, whole)
	if err != nil {
		return 0, err
	}
	leaveOut(&limits, asked.Limits, whole)
	name := gpuName
	if r.wanted(ration) != 0 { // it is not known yet which one
		name = func(int) string { return "a GPU" }
	}
	if err := checkRun(&limits, whole, nothingBeside, name); err != nil {
		return 0, err
	}
	return r.placeFor(uid, ration, whole, asked.Limits)
}

// placeFor returns where the ration of a user without a place is to be for a run that names devices: on these, and if it is for
// more, where it would be anyway. It is 0 if the run names none.
func (r *rations) placeFor(uid int, ration limit.Limits, whole region.Limits, asked limit.Limits) (at region.Place, err error) {
	want := r.wanted(ration)
	if _, is := placed(uid); is || want == 0 {
		return 0, nil
	}
	for d := range r.totals() {
		if asked.Names(d) {
			at |= region.PlaceAt(d)
		}
	}
	more := want - at.Count()
	switch {
	case at == 0 || more == 0:
		return at, nil
	case more < 0:
		return 0, fmt.Errorf("%w: it names %v, and your ration is on %s (ration policy show)", ErrRun, at, humanfmt.Plural(want, "GPU", "GPUs"))
	case r.mustLook():
		return 0, errUnread
	}
	others := slices.DeleteFunc(r.candidates(whole, r.beside(uid), r.yielding(map[int]bool{uid: true})), func(c launch.Candidate) bool { return at.Has(c.Device) })
	rest, _ := launch.Choose(more, others, inNoRation)
	return at | rest, nil
}

// leftText says why less of a user's ration is left on a device than whole, the ration: other runs have some of it, or, if
// short is set, there is no room for all of it.
func (r *rations) leftText(uid int, whole region.Limits, short bool) func(device int) string {
	b, runs := r.beside(uid), len(job.RunsOf(uid)) > 0
	return func(device int) (text string) {
		if runs {
			text = " that no other run has"
		}
		if all := whole.Memory[device]; short && (!all.Limited() || b.growsOn(device, whole)) {
			text += ", of the " + memoryText(all) + " of the rule, for which there is no room now"
		}
		return text
	}
}

func nothingBeside(int) string { return "" }

func gpuName(device int) string { return fmt.Sprintf("GPU %d", device) }

// fitsBeside reports whether a run has room in the whole ration of a user, beside the user's other runs and what the user's job
// holds.
func fitsBeside(uid int, run, whole region.Limits, holds [abi.Devices]uint64) bool {
	for _, other := range readyRuns(uid) {
		part, err := region.LimitsBeside(other.Path)
		if err != nil {
			return false
		}
		take(&whole, part)
	}
	for d, held := range holds {
		if has := whole.Memory[d].Bytes(); whole.Memory[d].Limited() {
			whole.Memory[d] = abi.MakeLimit(has - min(held, has))
		}
	}
	return checkRun(&run, whole, nothingBeside, gpuName) == nil && len(job.RunsOf(uid)) < maxRunsOfUser && len(job.RunsOf(-1)) < maxRuns
}

// carve creates a run with a part of the user's ration. The run is in use until the file, and all
// copies of it in other processes, are closed. takes is that of give, for a rule that gives more than the user has: other users
// lose theirs only if the run needs that.
func (r *rations) carve(uid int, name string, asked askedRun, takes bool) (_ *os.File, created int64, err error) {
	ration, rule, err := r.rationOf(uid)
	if err != nil {
		return nil, 0, err
	}
	if rule.Exempt {
		return nil, 0, fmt.Errorf("%w: %s is exempt", ErrRun, rule.Source)
	}
	asked.Priority = cmp.Or(asked.Priority, ration.Priority)
	if err := rule.allowsPriority(asked.Priority); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrRun, err)
	}
	project, claimed, err := rule.project(asked.project)
	if err != nil {
		return nil, 0, err
	}
	run := runOf(uid, name)
	if err := limit.CheckName("--name", run.Name); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrRun, err)
	}
	if !asked.Memory.IsSet() {
		return nil, 0, fmt.Errorf("%w: it has no limit (as --mem 4g)", ErrRun)
	}
	for _, other := range job.RunsOf(uid) { // runs whose launcher was killed a moment ago hold nothing back
		if err := r.endRun(other); err != nil && other.Path == run.Path {
			return nil, 0, fmt.Errorf("%w: job %s is in use (choose another --name)", ErrRun, name)
		}
	}
	whole, err := r.limitsOf(ration)
	if err != nil {
		return nil, 0, err
	}
	limits, err := r.partOf(asked.Limits, whole)
	if err != nil {
		return nil, 0, err
	}
	if err := r.checkTurn(uid, false); err != nil {
		return nil, 0, err
	}
	at, err := r.placeFor(uid, ration, whole, asked.Limits)
	if err != nil {
		return nil, 0, err
	}
	short := r.adjust(uid, ration, rule, at, takes, "a run asked for "+at.String()) // creates the user's job, or corrects its limits
	if short != nil && !isShortfall(short) {
		return nil, 0, short
	}
	before, err := region.LimitsBeside(job.OfUserPath(uid))
	if err != nil {
		return nil, 0, err
	}
	leaveOut(&limits, asked.Limits, whole)
	holds, err := heldIn(job.OfUserPath(uid), false)
	if err != nil {
		return nil, 0, err
	}
	why, err := r.restrictRun(&limits, asked, before, holds)
	if err != nil {
		return nil, 0, err
	}
	if why == "" && limits.Visible().Count() < abi.Devices { // it is where the user's job is
		why = job.InfoOf(jobOf(uid)).Placed
	}
	if err := checkRun(&limits, before, r.leftText(uid, whole, short != nil), gpuName); err != nil {
		if never := checkRun(&limits, whole.Restrict(before.Visible()), nothingBeside, gpuName); never != nil {
			return nil, 0, never
		}
		if short != nil && !takes && fitsBeside(uid, limits, whole.Restrict(before.Visible()), holds) {
			return r.carve(uid, name, asked, true)
		}
		return nil, 0, heldError{err} // without the user's other runs it would fit
	}
	if len(job.RunsOf(uid)) >= maxRunsOfUser || len(job.RunsOf(-1)) >= maxRuns {
		return nil, 0, heldError{fmt.Errorf("%w: there are too many already: %d of a user, or %d of all", ErrRun, maxRunsOfUser, maxRuns)}
	}
	plan, empty := planFor(asked.Limits, r.warn), nothing(before)
	plan.Placed, empty.Hidden = why, limits.Hidden
	if project != "" {
		plan.Labels, plan.Claimed = map[string]string{job.Project: project}, claimed
	}
	made, err := plan.CreateRun(uid, name, empty)
	if err != nil {
		return nil, 0, err
	}
	passed("made")
	after := before
	limits = take(&after, limits)
	err = r.move(uid, run, before, after, nothing(limits), limits, limits)
	if err == nil {
		passed("given")
		err = made.Stand()
	} else {
		made.Discard()
	}
	if err != nil {
		return nil, 0, err
	}
	passed("ready")
	// No other process can end the run before it is in use, because that needs the lock of
	// lockJobs.
	f, err := job.HandOn(run)
	if err != nil {
		return nil, 0, errors.Join(err, r.endRun(run), r.ensureUsable(uid))
	}
	created, _ = ready(run)
	return f, created, nil
}

// leaveOut takes devices that the ration is not for out of the limits of a run that does not name them: a plain size is for
// the devices that the user may use.
func leaveOut(limits *region.Limits, asked limit.Limits, ration region.Limits) {
	for d := range abi.Devices {
		if !asked.Names(d) && ration.Memory[d].Limited() && ration.Memory[d].Bytes() == 0 {
			limits.Memory[d], limits.Compute[d] = abi.MakeLimit(0), 0
		}
	}
}

// project returns the project that a run is accounted to, or "" for none. asked is what the user has chosen, or "". With a
// rule without projects that is a claim.
func (rule *Rule) project(asked string) (_ string, claimed bool, err error) {
	switch {
	case len(rule.Projects) == 0:
		return asked, asked != "", nil
	case asked == "" && len(rule.Projects) == 1:
		return rule.Projects[0], false, nil
	case asked == "" || slices.Contains(rule.Projects, asked):
		return asked, false, nil
	}
	return "", false, fmt.Errorf("%w: project %s is not one of yours (use --label project=%s)", ErrRun, asked, strings.Join(rule.Projects, " or "))
}

// returnRun ends a run whose launcher has closed its file, and returns its ration to the user's job. A run that other
// processes use goes on.
func (r *rations) returnRun(uid int, name string) error {
	run := runOf(uid, name)
	if err := limit.CheckName("--name", run.Name); err != nil {
		return err
	}
	switch err := r.endRun(run); {
	case errors.Is(err, job.ErrLiving) || errors.Is(err, job.ErrInUse):
		return nil
	case err != nil:
		return err
	}
	return r.ensureUsable(uid)
}

// endRun ends a run without processes: it sets the run's limits to 0 and removes it. The next
// ensure returns its ration to the user's job.
func (r *rations) endRun(run job.Job) error {
	if _, err := os.Lstat(filepath.Dir(run.Path)); errors.Is(err, fs.ErrNotExist) {
		return nil // it was ended already; to remove it would make its folder again, for a moment
	}
	// A run in use keeps its limits, so that its programs are not refused memory here.
	if job.Running(run) || region.Locked(run.Path) {
		return fmt.Errorf("ending %s: %w", run.Name, job.ErrInUse)
	}
	before, err := region.LimitsBeside(run.Path)
	if err == nil {
		// Do this before job.Remove checks for processes, so that a process that joins later gets
		// nothing.
		if err := setLimitsAt(run.Path, nothing(before)); err != nil {
			return err
		}
	}
	passed("ended")
	known := err == nil
	if err := job.Remove(run, true); err != nil && !errors.Is(err, job.ErrNoJob) {
		// A process has joined. The run gets its limits back; no other job has got them in between.
		if _, is := ready(run); is && known {
			err = errors.Join(err, setLimitsAt(run.Path, before))
		}
		return err
	}
	if uid, _, is := job.RunOf(run.Name); is && known {
		r.ended = append(r.ended, booked{uid, true, before})
	}
	passed("removed")
	return nil
}
