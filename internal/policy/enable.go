package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/safepath"
)

// ErrDisabled is returned if no policy is in force.
var ErrDisabled = errors.New("no policy is in force")

// disabled returns ErrDisabled, and tells root what to do about it.
func disabled() error {
	if os.Geteuid() != 0 {
		return ErrDisabled
	}
	return fmt.Errorf("%w (ration policy enable puts %s in force)", ErrDisabled, ConfigFile)
}

// firstLine is the first line of InForceFile, which the library reads (shim/userjob.c).
func (p *Policy) firstLine() string { return "# missing: " + p.Missing + "\n" }

// InForce returns the policy that is in force, or ErrDisabled.
func InForce() (*Policy, error) {
	text, err := os.ReadFile(InForceFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, disabled()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the policy in force: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	return Parse(InForceFile, []byte(rest))
}

// Check reads a file and checks it for this machine.
func Check(file string) (*Policy, error) {
	p, err := Read(file)
	if p == nil {
		return nil, err
	}
	var all ConfigError
	for _, err := range []error{err, p.CheckNames(file), p.checkCapacity(file)} {
		var wrong *ConfigError
		if errors.As(err, &wrong) {
			all = ConfigError{file, append(all.Problems, wrong.Problems...)}
		} else if err != nil {
			return nil, err
		}
	}
	if len(all.Problems) > 0 {
		all.sort()
		return nil, &all
	}
	return p, nil
}

// Trusted returns an error for a file that users other than root can write.
func Trusted(file string) error {
	for _, path := range []string{filepath.Dir(file), file} {
		st, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", path, err)
		}
		if uid := ownerOf(st); uid != 0 || st.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%s belongs to user %d, with mode %04o (it must belong to root, and no other user may write it)", path, uid, st.Mode().Perm())
		}
	}
	return nil
}

// Result is how a policy was applied.
type Result struct {
	Users  []int // have the ration of their rule
	Later  []Later
	Failed []Fail
}

// Later is a user whose ration is on other devices than those of the rule, until it can be moved.
type Later struct {
	UID  int
	Text string
}

// Fail is a user whose ration could not be created or changed.
type Fail struct {
	UID int
	Err error
}

// Text is the error for the operator, without what the user could do.
func (f Fail) Text() string {
	if !errors.Is(f.Err, ErrOverbooked) {
		return f.Err.Error()
	}
	text := whyFull(f.Err)
	var full *noRoom
	if errors.As(f.Err, &full) && full.outside+full.roots > 0 {
		text += " (ration ps names what is in none)"
	}
	if isShortfall(f.Err) {
		text += "; the user keeps what it had of that until there is room, and the rest of the rule counts"
	}
	return text
}

// apply creates or changes the jobs of three kinds of users: those that the file names, those that
// have a job, and those in more. It also exempts the agent's user. The service creates the jobs of
// other users when they first need one (Keep). The caller holds the lock of lockJobs.
func (p *Policy) apply(more []int, warn func(string)) (Result, error) {
	r, err := p.open(warn)
	if err != nil {
		return Result{}, err
	}
	defer r.close()
	if err := p.keepHigh(); err != nil {
		return Result{}, err
	}
	todo := append(Users(), more...)
	agent, hasAgent := agentUser()
	if hasAgent {
		todo = append(todo, agent) // it may need the exemption before the service starts
	}
	for name := range p.Users {
		if uid, err := names.uid(name); err == nil {
			todo = append(todo, uid)
		} else {
			warn(fmt.Sprintf("users.%s: %v", name, err))
		}
	}
	todo = r.inTurn(sortedUsers(todo))
	var out Result
	for try := range 2 { // a user may need capacity that a later user releases
		out.Failed = nil
		var again []int
		for _, uid := range todo {
			if slices.Contains(r.taken, uid) && !usable(uid) {
				continue // the next program of the user asks for it
			}
			if lent(uid) && !r.hasRoom(uid) {
				continue // it has no use of its ration until it wakes
			}
			err := r.ensure(uid)
			if errors.Is(err, ErrDamaged) && (errors.Is(err, job.ErrLiving) || errors.Is(err, job.ErrInUse)) {
				warn(err.Error()) // a user cannot make the policy fail, and its limits are the new ones
				err = nil
			}
			if err == nil {
				out.Users = append(out.Users, uid)
			} else if again = append(again, uid); try == 1 || !errors.Is(err, ErrOverbooked) {
				out.Failed = append(out.Failed, Fail{uid, err})
			}
		}
		if todo = again; len(todo) == len(out.Failed) {
			break
		}
	}
	out.Users = slices.DeleteFunc(out.Users, func(uid int) bool { return slices.Contains(r.taken, uid) && !usable(uid) })
	for _, uid := range out.Users {
		if r.misplaced(uid) {
			now, _ := placed(uid)
			out.Later = append(out.Later, Later{uid, r.movesText(uid, now)})
		}
	}
	slices.Sort(out.Users)
	out.Users = slices.DeleteFunc(out.Users, func(uid int) bool { return hasAgent && uid == agent }) // no user of the operator's
	return out, nil
}

// inTurn returns users in the order in which they get their rations: those who have one, and then the larger ones.
func (r *rations) inTurn(uids []int) []int {
	has, limits := map[int]bool{}, map[int]region.Limits{}
	for _, uid := range uids {
		has[uid] = usable(uid)
		if ration, _, err := r.rationOf(uid); err == nil {
			limits[uid], _ = r.limitsOf(ration)
		}
	}
	slices.SortStableFunc(uids, func(a, b int) int {
		switch {
		case has[a] && has[b]:
			return 0
		case has[a]:
			return -1
		case has[b]:
			return 1
		}
		return largerFirst(limits[a], limits[b])
	})
	return uids
}

// sortedUsers returns each user once, without root.
func sortedUsers(uids []int) []int {
	slices.Sort(uids)
	return slices.DeleteFunc(slices.Compact(uids), func(uid int) bool { return uid == 0 })
}

// putInForce replaces the policy in force. What another policy refused is no finding any more: its advice may be of no use now.
func (p *Policy) putInForce() error {
	if err := os.MkdirAll(Folder, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", Folder, err)
	}
	text := append([]byte(p.firstLine()), p.Text...)
	if before, err := os.ReadFile(InForceFile); err == nil && !bytes.Equal(before, text) {
		_ = job.SettleDenied(-1)
	}
	return safepath.Replace(InForceFile, text, 0o644)
}

// Enable puts a policy in force. If it fails, programs preload the same as before.
func (p *Policy) Enable(more []int, warn func(string)) (Result, error) {
	lookAround()
	lock, err := lockJobs()
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if checkInForce() != nil { // programs that waited when the last policy ended have gone on
		_ = os.Remove(filepath.Join(job.RootFolder, job.PolicyWaiting))
	}
	return p.enable(more, warn)
}

// Apply replaces the policy in force, changes the limits of running jobs, and installs the library of
// this program.
func (p *Policy) Apply(more []int, warn func(string)) (Result, error) {
	lookAround()
	lock, err := lockJobs()
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if err := checkInForce(); err != nil {
		return Result{}, err
	}
	return p.enable(more, warn)
}

// enable is Enable for a caller that holds the lock of lockJobs. Without the lock, a concurrent
// Disable could remove the library while /etc/ld.so.preload names it.
func (p *Policy) enable(more []int, warn func(string)) (Result, error) {
	if err := installLibrary(); err != nil {
		return Result{}, err
	}
	takeLeft()
	out, err := p.apply(more, warn)
	if err == nil {
		err = p.putInForce()
	}
	if err == nil {
		err = preload(true)
	}
	return out, err
}

// checkInForce returns ErrDisabled if no policy is in force. The result stays valid while the
// caller holds the lock.
func checkInForce() error {
	if _, err := os.Lstat(InForceFile); err != nil {
		return disabled()
	}
	return nil
}

// Disable ends the policy. Running programs stay in their jobs; programs that start later are in no
// job. It returns the jobs and runs that still have processes.
func Disable() (left []job.Job, err error) {
	lock, err := lockJobs()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := preload(false); err != nil {
		return nil, err
	}
	returnLent()
	_ = job.SettleDenied(-1) // refusals stop being findings by themselves, later
	if err := os.Remove(InForceFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("ending the policy: %w", err)
	}
	if err := removeLibrary(); err != nil {
		return nil, fmt.Errorf("removing the library: %w", err)
	}
	for _, uid := range highUsers() {
		_ = markHigh(uid, false) // without a policy, no process reads it
	}
	remove := func(j job.Job) {
		if !safepath.Exists(filepath.Dir(j.Path)) {
			return // of a user with a run only
		}
		if err := job.Remove(j, true); err != nil {
			left = append(left, j) // with processes it stays until these end
			_ = os.WriteFile(leftPath(j), nil, 0o644)
		}
	}
	for _, uid := range Users() {
		_ = os.Remove(filepath.Join(folderOf(uid), job.ExemptName))
		remove(jobOf(uid))
		for _, run := range job.RunsOf(uid) {
			remove(run)
		}
	}
	return left, nil
}

func leftPath(j job.Job) string { return filepath.Join(filepath.Dir(j.Path), job.LeftName) }

// takeLeft takes back the jobs that an earlier policy has left to their processes.
func takeLeft() {
	for _, uid := range Users() {
		for _, j := range append(job.RunsOf(uid), jobOf(uid)) {
			_ = os.Remove(leftPath(j))
		}
	}
}

// returnLent gives the jobs whose rations are lent their limits back, also where others have the room: without a policy
// nobody else would, and they could not wake. They find room in the queue, as jobs do without a policy. The caller holds
// the lock of lockJobs.
func returnLent() {
	p, err := InForce()
	if err != nil {
		return // none of its rules is known, and there may be none
	}
	r, err := p.open(func(string) {})
	if err != nil {
		return
	}
	defer r.close()
	for _, uid := range Users() {
		if lent(uid) {
			if l, _, err := r.wholeRation(uid); err == nil {
				_ = setLimits(uid, l) // a user's file that cannot be changed must not keep the policy in force
			}
		}
	}
}

func ownerOf(st fs.FileInfo) uint32 {
	if sys, is := st.Sys().(*syscall.Stat_t); is {
		return sys.Uid
	}
	return 0
}
