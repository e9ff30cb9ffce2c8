package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

var (
	// ErrNotRoot is returned to users other than root.
	ErrNotRoot = errors.New("only root can do this")
	// ErrOverbooked is returned for a ration that does not fit beside those of other users.
	ErrOverbooked = errors.New("no room")
	// ErrTooMuch is returned for a ration that is more than the rule's largest.
	ErrTooMuch = errors.New("more than this user may have")
	// ErrDamaged is returned for a job that its user has damaged and that still has processes. Its limits were
	// changed, so that these get no more than the ration. New programs of the user are refused until they end:
	// otherwise the user would get the ration once more for each damaged job.
	ErrDamaged = errors.New("the job was damaged, or made by another version")
)

// rations creates and changes the jobs of users. Its caller holds the lock of lockJobs.
type rations struct {
	policy  *Policy
	driver  *gpu.Driver // nil if there is none; missing says why
	missing error
	warn    func(string)
	note    func(uid int, text string) // writes to the log; may be nil

	stays  map[int]time.Time        // when rations of users could not be taken back; guarded by the lock
	taken  []int                    // users whose rations were taken back for others
	ended  []booked                 // runs that have ended since the lock was taken: their part is the user's
	roots  map[string]region.Limits // of root's own jobs, once it was asked (beside)
	seen   *seen                    // nil if the machine must be looked at (mustLook)
	unread bool                     // it would have counted
}

// lockJobs takes the lock that protects the jobs of users and the policy in force. The caller must
// close the file.
func lockJobs() (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := makeRunFolder(); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(job.RootFolder, job.PolicyLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the jobs of users: %w", err)
	}
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("locking the jobs of users: %w", err)
	}
	return lock, nil
}

// open finds the devices, and completes what a service that died had begun. The caller holds the lock of
// lockJobs.
func (p *Policy) open(warn func(string)) (*rations, error) {
	driver, missing := devices()
	return p.openWith(driver, missing, warn)
}

// openWith is open with devices that were found without the lock.
func (p *Policy) openWith(driver *gpu.Driver, missing error, warn func(string)) (*rations, error) {
	r := &rations{policy: p, driver: driver, missing: missing, warn: warn, stays: map[int]time.Time{}, seen: lastSeen(heldFor)}
	err := keepLeaving()
	if err == nil && missing != nil && !errors.Is(missing, gpu.ErrNoDriver) {
		err = missing
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rations) close() {
	if r.driver != nil {
		r.driver.Close()
	}
}

// makeRunFolder makes the folder of root's jobs, which all users can enter, and its files for jobs
// with a priority.
func makeRunFolder() error {
	high := filepath.Join(job.RootFolder, job.HighFolder)
	err := os.MkdirAll(high, 0o755)
	for _, folder := range []string{job.RootFolder, high} {
		if err == nil {
			err = os.Chmod(folder, 0o755) // in case of another umask, or if the folder existed
		}
	}
	if err == nil {
		err = job.MakePriorityFile(job.RootFolder)
	}
	if err != nil {
		return fmt.Errorf("making the folder of jobs: %w", err)
	}
	return nil
}

// jobOf returns the job of a user, which need not exist.
func jobOf(uid int) job.Job { return job.Job{Name: job.OfUser(uid), Path: job.OfUserPath(uid)} }

// Users returns the users that have a folder: for a job, for a run, or for an exemption.
func Users() (uids []int) {
	entries, _ := os.ReadDir(job.RootFolder)
	for _, e := range entries {
		if uid, is := job.UserOf(e.Name()); is {
			uids = append(uids, uid)
		} else if uid, _, is := job.RunOf(e.Name()); is {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// limitsOf returns the limits of a ration on this machine's devices. It is an error if the ration names a
// device that the machine does not have.
func (r *rations) limitsOf(ration limit.Limits) (region.Limits, error) {
	return planFor(ration, func(string) {}).Limits(r.driver, r.missing)
}

// partOf is limitsOf for a run in a ration. A size beyond the device's is no error where the ration has a limit: checkRun says
// what that is.
func (r *rations) partOf(asked limit.Limits, ration region.Limits) (region.Limits, error) {
	plan := planFor(asked, func(string) {})
	plan.Within = ration
	limits, err := plan.Limits(r.driver, r.missing)
	if err != nil {
		return limits, fmt.Errorf("%w: %w", ErrRun, err)
	}
	return limits, nil
}

// ensure creates the job of a user, or changes its limits, or exempts the user, as the policy says.
func (r *rations) ensure(uid int) error { return r.ensureAt(uid, 0) }

// ensureAt is ensure for a job on certain devices, or on any if at is empty.
func (r *rations) ensureAt(uid int, at region.Place) error {
	if _, err := uncover(append(job.RunsOf(uid), jobOf(uid))); err != nil {
		return err
	}
	ration, rule, err := r.rationOf(uid)
	if err != nil {
		return err
	}
	if rule.Exempt {
		return r.exempt(uid)
	}
	if err := r.adjust(uid, ration, rule, at, false, "a program that had begun there, or a run, asked for "+at.String()); !errors.Is(err, ErrFailed) {
		return err
	}
	return nil // the limits stay until the GPU answers, or the programs there have ended
}

// ruleOf returns the rule of a user. It is an error if the user has none.
func (r *rations) ruleOf(uid int) (*Rule, error) {
	rule, err := r.policy.For(uid)
	if err == nil && rule == nil {
		err = fmt.Errorf("user %d: root is not rationed", uid)
	}
	return rule, err
}

// rationOf returns the ration of a user: what the user asked for, and for the rest that of the rule.
func (r *rations) rationOf(uid int) (ration limit.Limits, rule *Rule, err error) {
	if rule, err = r.ruleOf(uid); err != nil {
		return ration, nil, err
	}
	asked, _ := readAsked(uid)
	return rule.ration(asked, r.usable()), rule, nil
}

// give sets a user's job to a ration, less the limits of the user's runs. It creates the job if
// necessary, on the devices of at, for the reason atWhy; if at is empty, it chooses them. Only with takes other users may lose
// theirs so that one grows; for a ration that the user does not have, they may anyway.
func (r *rations) give(uid int, ration limit.Limits, rule *Rule, at region.Place, takes bool, atWhy string) error {
	if now, is := placed(uid); is && r.failed(now) && !idle(uid) { // its size is not known, so neither are limits there
		return fmt.Errorf("%w: %v (end your programs there, and the next gets another GPU)", ErrFailed, now)
	}
	limits, err := r.limitsOf(ration)
	if err != nil {
		return fmt.Errorf("%s: %w", rule.Source, err)
	}
	if err := markHigh(uid, rule.mayBeHigh()); err != nil {
		return err
	}
	if err := r.checkGrowth(uid, limits); err != nil {
		return err
	}
	asked, _ := os.ReadFile(askedPath(uid))
	limits, why, err := r.place(uid, ration, limits, at, takes, atWhy)
	if err != nil {
		return err
	}
	if usable(uid) {
		return r.set(uid, rule, limits)
	}
	if limits, err = r.divide(uid, rule, limits); err != nil {
		return err
	}
	if err := r.create(uid, ration, limits, why); err != nil {
		return err
	}
	return errors.Join(keepAsked(uid, asked), endExemption(uid))
}

func folderOf(uid int) string { return filepath.Dir(job.OfUserPath(uid)) }

// usable reports whether a user has a job that new processes can join.
func usable(uid int) bool {
	j := jobOf(uid)
	created, standing := job.StandingSince(j)
	if !standing || !ownedBy(uid) {
		return false
	}
	if _, err := region.OpenOperatorLimits(j.Path); err != nil {
		return false
	}
	reader, err := region.OpenReadOnly(j.Path)
	if err != nil {
		// The user has a lease on the file. Its limits can still be changed, and they must be: otherwise a
		// user with a lease would keep a ration that was lowered.
		return errors.Is(err, unix.EAGAIN)
	}
	defer reader.Close()
	return reader.Created() == created
}

// create makes a job, after it has removed one that cannot be used.
func (r *rations) create(uid int, ration limit.Limits, limits region.Limits, why string) error {
	if _, err := os.Lstat(folderOf(uid)); err == nil {
		err := job.Remove(jobOf(uid), true)
		if errors.Is(err, job.ErrLiving) || errors.Is(err, job.ErrInUse) {
			if err := setLimits(uid, limits); err != nil {
				return fmt.Errorf("user %d: %w, and its limits cannot be changed: %w", uid, ErrDamaged, err)
			}
		}
		if err != nil && !errors.Is(err, job.ErrNoJob) {
			return fmt.Errorf("user %d: %w, and cannot be made again: %w", uid, ErrDamaged, err)
		}
	}
	plan := planFor(ration, r.warn)
	plan.Placed = why
	if rule, err := r.ruleOf(uid); err == nil {
		plan.Labels = rule.labels()
	}
	err := plan.CreateForUser(uid, limits)
	if err == nil {
		r.say(uid, "%s has a ration%s", proc.UserName(uid), r.rationText(": ", limits))
		_ = job.SettleDenied(uid) // an old refusal stops being a finding by itself, later
	}
	return err
}

// labels returns the labels of the job of all programs of a user: the rule's project, if it has one only.
func (rule *Rule) labels() map[string]string {
	if len(rule.Projects) != 1 {
		return nil
	}
	return map[string]string{job.Project: rule.Projects[0]}
}

// exempt lets a user's programs run without a job, and removes the limits of a job that exists.
func (r *rations) exempt(uid int) error {
	if usable(uid) {
		_ = evict(uid) // if it is idle; nothing would be in it any more
	}
	folder := folderOf(uid)
	err := os.Mkdir(folder, 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = errors.Join(os.Chmod(folder, 0o755), linkExempt(filepath.Join(folder, job.ExemptName), uid), markHigh(uid, true))
	}
	if err != nil {
		return fmt.Errorf("exempting user %d: %w", uid, err)
	}
	_ = job.SettleDenied(uid)
	if usable(uid) {
		return setLimits(uid, region.Limits{})
	}
	return nil
}

// linkExempt replaces the link that exempts a user, by a rename.
func linkExempt(path string, uid int) error {
	link := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(os.Symlink("nowhere", link), os.Lchown(link, uid, uid)); err != nil {
		return err
	}
	return os.Rename(link, path)
}

// setLimits changes the limits of a user's job.
func setLimits(uid int, l region.Limits) error { return setLimitsAt(job.OfUserPath(uid), l) }

// setLimitsAt changes the limits of a user's job or run, given the path of its region. It writes
// only limits that differ.
func setLimitsAt(path string, l region.Limits) error {
	o, err := region.OpenOperatorLimits(path)
	if err != nil {
		return err
	}
	for d := range abi.Devices {
		memory := l.Memory[d]
		if memory == 0 {
			memory = abi.Unlimited
		}
		if now, err := o.Limit(d); err != nil || now != memory && (now != 0 || l.Memory[d] != 0) {
			if err := errors.Join(err, o.SetLimit(d, memory)); err != nil {
				return err
			}
			passed("set")
		}
		share, most := cmp.Or(l.Compute[d], abi.ComputeNone), cmp.Or(l.ComputeMax[d], abi.ComputeNone)
		now, err := o.Compute(d)
		if err != nil {
			return err
		}
		if abi.Percent(share) != now.Share {
			err = o.SetCompute(d, share)
		}
		if abi.Percent(most) != now.Max {
			err = errors.Join(err, o.SetComputeMax(d, most))
		}
		if err != nil {
			return err
		}
	}
	if priority := abi.PriorityOf(l.Priority); priority != o.Priority() {
		return o.SetPriority(priority)
	}
	return nil
}

// failed reports whether a device of a place does not answer.
func (r *rations) failed(at region.Place) bool {
	return r.driver != nil && slices.ContainsFunc(r.driver.Devices, func(d gpu.Device) bool { return d.Failed != nil && at.Has(d.Index) })
}

// ErrFailed is returned for a change of a ration that is in use on a device that does not answer.
var ErrFailed = errors.New("a GPU of your ration does not answer")

// allows returns an error for a ration that is more than the rule's largest.
func (rule *Rule) allows(asked limit.Limits, totals []limit.Size) error {
	if rule.Exempt {
		return fmt.Errorf("%w: %s is exempt, and has no ration", ErrTooMuch, rule.Source)
	}
	for _, e := range excesses(asked, rule.Largest, totals) {
		return fmt.Errorf("%w: %s %s, where %s is the largest (%s in %s)", ErrTooMuch, e.name, e.has, e.most, rule.Source, ConfigFile)
	}
	return rule.allowsPriority(asked.Priority)
}

// ration returns the ration of a user that has asked for some limits. The rule sets those that the user has not asked for,
// and those that the user may not have any more.
func (rule *Rule) ration(asked limit.Limits, totals []limit.Size) limit.Limits {
	if rule.Exempt {
		return rule.Default
	}
	asked.Devices = rule.Default.Devices
	for _, e := range excesses(asked.Or(rule.Default), rule.Largest, totals) {
		switch e.key {
		case "memory":
			asked.Memory = rule.Default.Memory
		case "compute":
			asked.Compute = rule.Default.Compute
		case "compute_max":
			asked.ComputeMax = rule.Default.ComputeMax
		}
	}
	if checkShares(asked.Or(rule.Default)) != nil {
		asked.Compute, asked.ComputeMax = rule.Default.Compute, rule.Default.ComputeMax
	}
	if rule.allowsPriority(asked.Priority) != nil {
		asked.Priority = 0
	}
	return asked.Or(rule.Default)
}

// allowsPriority returns an error for a priority above the rule's highest.
func (rule *Rule) allowsPriority(asked limit.Priority) error {
	if !asked.Above(rule.Largest.Priority) {
		return nil
	}
	return fmt.Errorf("%w: %s priority, where %s is the highest (max_priority of %s in %s)",
		ErrTooMuch, asked, cmp.Or(rule.Largest.Priority, limit.PriorityNormal), rule.Source, ConfigFile)
}

// askedName is the file, in the folder of a user's job, with the limits that the user asked for.
const askedName = "asked"

func askedPath(uid int) string { return filepath.Join(folderOf(uid), askedName) }

// keepAsked records the limits that a user asked for; nothing if text is empty.
func keepAsked(uid int, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	if err := safepath.Replace(askedPath(uid), text, 0o644); err != nil {
		return fmt.Errorf("recording the ration of user %d: %w", uid, err)
	}
	return nil
}

// readAsked returns the limits that a user asked for and got.
func readAsked(uid int) (limit.Limits, error) {
	text, err := os.ReadFile(askedPath(uid))
	if err != nil {
		return limit.Limits{}, err
	}
	return limit.ParseLimits(string(text))
}

// ask gives a user the limits that the user asks for, beside those that the user has asked for earlier. Without any it
// returns the user to the ration of the rule.
func (r *rations) ask(uid int, asked limit.Limits) error {
	rule, err := r.ruleOf(uid)
	if err != nil {
		return err
	}
	asked.Devices = 0
	if err := rule.allows(asked.Or(rule.Default), r.usable()); err != nil {
		return err
	}
	if asked.IsSet() {
		earlier, _ := readAsked(uid)
		asked = asked.Or(earlier)
	}
	if err := checkShares(asked.Or(rule.Default)); err != nil {
		return fmt.Errorf("%w: %w", ErrTooMuch, err)
	}
	ration := rule.ration(asked, r.usable())
	if err := r.checkTurn(uid, lent(uid) && r.grows(uid, ration)); err != nil { // otherwise give checks what grows
		return err
	}
	if err := r.give(uid, ration, rule, 0, true, ""); err != nil {
		return err
	}
	_ = job.SettleDenied(uid) // the user has read that it was granted
	if err := keepAsked(uid, []byte(asked.String()+"\n")); err != nil {
		return err
	}
	if whole, _, err := r.wholeRation(uid); err == nil { // otherwise only the log has a line less
		r.say(uid, "%s has asked for another ration, and has it%s", proc.UserName(uid), r.rationText(": ", whole))
	}
	return nil
}

// ownedBy reports whether the region of a user's job belongs to that user.
func ownedBy(uid int) bool {
	dir, err := safepath.OpenFolder(folderOf(uid))
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	return safepath.StatAt(dir, job.RegionName, &st) == nil && st.Uid == uint32(uid)
}
