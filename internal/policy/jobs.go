package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/internal/safepath"
)

var (
	// ErrNotRoot is returned to users who are not root.
	ErrNotRoot = errors.New("only root can do this")
	// ErrOverbooked is returned for a ration that does not fit beside the others.
	ErrOverbooked = errors.New("no room beside the rations of others")
	// ErrTooMuch is returned for a ration that is more than a user may have.
	ErrTooMuch = errors.New("more than this user may have")
)

// rations makes and changes the jobs of users, under the lock that there is for it (lockJobs).
type rations struct {
	policy  *Policy
	driver  *gpu.Driver // nil where there is none, for the reason missing
	missing error
	warn    func(string)
}

// lockJobs takes the lock under which jobs of users are made, and a policy begins, changes and ends. The
// file is to be closed.
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

// open looks for the devices. It changes nothing. The lock is held by who calls it.
func (p *Policy) open(warn func(string)) (*rations, error) {
	r := &rations{policy: p, warn: warn}
	if r.driver, r.missing = launch.KnownDevices(); r.missing != nil && !errors.Is(r.missing, gpu.ErrNoDriver) {
		return nil, r.missing
	}
	return r, nil
}

func (r *rations) close() {
	if r.driver != nil {
		r.driver.Close()
	}
}

// makeRunFolder makes the folder of root's jobs, which all users can enter.
func makeRunFolder() error {
	err := os.MkdirAll(job.RootFolder, 0o755)
	if err == nil {
		err = os.Chmod(job.RootFolder, 0o755) // whatever the umask is, or who made it
	}
	if err != nil {
		return fmt.Errorf("making the folder of jobs: %w", err)
	}
	return nil
}

// jobOf returns the job of a user, which need not exist.
func jobOf(uid int) job.Job { return job.Job{Name: job.OfUser(uid), Path: job.OfUserPath(uid)} }

// Users returns the users who have a job or a run, or are exempt, by their folders.
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

// limitsOf returns the limits that a ration is on this machine. A limit that the driver has no
// device for is an error of the file.
func (r *rations) limitsOf(ration limit.Limits) (region.Limits, error) {
	return planFor(ration, func(string) {}).Limits(r.driver, r.missing)
}

// ensure gives a user what the policy says: a job with these limits, or none. It changes the
// limits of a job that is there.
func (r *rations) ensure(uid int) error {
	ration, rule, err := r.rationOf(uid)
	if err != nil {
		return err
	}
	if rule.Exempt {
		return r.exempt(uid)
	}
	return r.give(uid, ration, rule)
}

// rationOf returns what a user has by the policy: what the user asked for, or else the rule's.
func (r *rations) rationOf(uid int) (ration limit.Limits, rule *Rule, err error) {
	if rule, err = r.policy.For(uid); err != nil {
		return ration, nil, err
	}
	if rule == nil {
		return ration, nil, fmt.Errorf("user %d: root is not rationed", uid)
	}
	ration = rule.Default
	if asked, err := readAsked(uid); err == nil && rule.allows(asked, r.totals()) == nil {
		ration = asked
	}
	return ration, rule, nil
}

// give gives a user a job with a ration, less what the user's runs have of it.
func (r *rations) give(uid int, ration limit.Limits, rule *Rule) error {
	limits, err := r.limitsOf(ration)
	if err != nil {
		return fmt.Errorf("%s: %w", rule.Source, err)
	}
	if err := r.fits(uid, limits); err != nil {
		return err
	}
	if limits, err = r.divide(uid, limits); err != nil {
		return err
	}
	if usable(uid) {
		if err := setLimits(uid, limits); err != nil {
			return err
		}
	} else if err := r.create(uid, ration, limits); err != nil {
		return err
	}
	err = os.Remove(filepath.Join(folderOf(uid), job.ExemptName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rationing user %d: %w", uid, err)
	}
	return nil
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
		return false
	}
	defer reader.Close()
	return reader.Created() == created
}

// create makes a job, in the place of one that cannot be used.
func (r *rations) create(uid int, ration limit.Limits, limits region.Limits) error {
	if _, err := os.Lstat(folderOf(uid)); err == nil {
		if err := job.Remove(jobOf(uid), true); err != nil && !errors.Is(err, job.ErrNoJob) {
			return fmt.Errorf("the job of user %d cannot be used (it was damaged, or made by another version), nor made again: %w", uid, err)
		}
	}
	return planFor(ration, r.warn).CreateForUser(uid, limits)
}

// exempt lets a user's programs run without a job. Those that run are limited no longer.
func (r *rations) exempt(uid int) error {
	folder := folderOf(uid)
	err := os.Mkdir(folder, 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = errors.Join(os.Chmod(folder, 0o755), linkExempt(filepath.Join(folder, job.ExemptName), uid))
	}
	if err != nil {
		return fmt.Errorf("exempting user %d: %w", uid, err)
	}
	if usable(uid) {
		return setLimits(uid, region.Limits{})
	}
	return nil
}

// linkExempt makes the link that says that a user is exempt, in one step.
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

// setLimits changes the limits of a user's job, each that is another.
func setLimits(uid int, l region.Limits) error { return setLimitsAt(job.OfUserPath(uid), l) }

// setLimitsAt changes the limits of a job of root's, by the path of its region.
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
	return nil
}

func (r *rations) totals() []limit.Size {
	if r.driver == nil {
		return nil
	}
	return r.driver.Totals()
}

// allows returns an error for a ration that is more than the rule's largest.
func (rule *Rule) allows(asked limit.Limits, totals []limit.Size) error {
	switch {
	case rule.Exempt:
		return fmt.Errorf("%w: %s is exempt, and has no ration", ErrTooMuch, rule.Source)
	case moreMemoryOf(asked.Memory, rule.Largest.Memory, totals):
		return fmt.Errorf("%w: memory %s, where %s is the largest (%s in %s)", ErrTooMuch, asked.Memory, rule.Largest.Memory, rule.Source, ConfigFile)
	case moreCompute(asked.Compute, rule.Largest.Compute, false):
		return fmt.Errorf("%w: a share of %s, where %s is the largest (%s in %s)", ErrTooMuch, asked.Compute, rule.Largest.Compute, rule.Source, ConfigFile)
	case moreCompute(asked.ComputeMax, rule.Largest.ComputeMax, true):
		return fmt.Errorf("%w: a cap of %s, where %s is the largest (%s in %s)", ErrTooMuch, asked.ComputeMax, rule.Largest.ComputeMax, rule.Source, ConfigFile)
	}
	return nil
}

// askedName is the file, in the folder of a user's job, with the ration that the user asked for.
const askedName = "asked"

// readAsked returns the ration that a user asked for, and has been given.
func readAsked(uid int) (limit.Limits, error) {
	text, err := os.ReadFile(filepath.Join(folderOf(uid), askedName))
	if err != nil {
		return limit.Limits{}, err
	}
	return limit.ParseLimits(string(text))
}

// ask gives a user the ration that the user asks for; what is not set in it is the rule's.
func (r *rations) ask(uid int, asked limit.Limits) error {
	rule, err := r.policy.For(uid)
	if err != nil {
		return err
	}
	if rule == nil {
		return fmt.Errorf("user %d: root is not rationed", uid)
	}
	asked = asked.Or(rule.Default)
	if err := rule.allows(asked, r.totals()); err != nil {
		return err
	}
	if err := r.give(uid, asked, rule); err != nil {
		return err
	}
	if err := safepath.Replace(filepath.Join(folderOf(uid), askedName), []byte(asked.String()+"\n"), 0o644); err != nil {
		return fmt.Errorf("recording the ration of user %d: %w", uid, err)
	}
	return nil
}

// ownedBy reports whether the region of a user's job is that user's.
func ownedBy(uid int) bool {
	var st unix.Stat_t
	return unix.Lstat(job.OfUserPath(uid), &st) == nil && st.Uid == uint32(uid)
}
