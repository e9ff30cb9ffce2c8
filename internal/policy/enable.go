package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"ration/internal/job"
)

// ErrDisabled is returned where no policy is in force.
var ErrDisabled = errors.New("no policy is in force")

// firstLine begins the file that says what is in force: the library reads it (shim/userjob.c).
func (p *Policy) firstLine() string { return "# missing: " + p.Missing + "\n" }

// InForce returns the policy that is in force, or ErrDisabled.
func InForce() (*Policy, error) {
	text, err := os.ReadFile(InForceFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (ration policy enable puts %s in force)", ErrDisabled, ConfigFile)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is in force: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	return Parse(InForceFile, []byte(rest))
}

// Check reads a file and checks it for this machine: all that Enable and Apply refuse.
func Check(file string) (*Policy, error) {
	p, err := Read(file)
	if err != nil {
		return nil, err
	}
	if err := p.CheckNames(file); err != nil {
		return nil, err
	}
	return p, p.CheckRoom(file)
}

// Trusted returns an error for a file that others than root can write: they would ration users.
func Trusted(file string) error {
	for _, path := range []string{filepath.Dir(file), file} {
		st, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", path, err)
		}
		if uid := ownerOf(st); uid != 0 || st.Mode().Perm()&0o022 != 0 {
			return fmt.Errorf("%s belongs to user %d, with mode %04o (it must be root's, and writable by nobody else)", path, uid, st.Mode().Perm())
		}
	}
	return nil
}

// Result is what was done for users.
type Result struct {
	Users  []int  // who have what the policy says
	Failed []Fail // who have not
}

// Fail is a user for whom the policy could not be applied, and why.
type Fail struct {
	UID int
	Err error
}

// apply gives all users whom the file names, and those who have a job already, what the policy
// says; and users in more, and the agent's. Others have theirs made when they first need it (Keep). The lock is held.
func (p *Policy) apply(more []int, warn func(string)) (Result, error) {
	r, err := p.open(warn)
	if err != nil {
		return Result{}, err
	}
	defer r.close()
	todo := append(Users(), more...)
	if uid, is := agentUser(); is {
		todo = append(todo, uid) // an agent may start where no keeper runs
	}
	for name := range p.Users {
		if uid, err := names.uid(name); err == nil {
			todo = append(todo, uid)
		} else {
			warn(fmt.Sprintf("users.%s: %v", name, err))
		}
	}
	todo = sortedUsers(todo)
	var out Result
	for try := range 2 { // one may need the room that a later one gives up
		out.Failed = nil
		var again []int
		for _, uid := range todo {
			if err := r.ensure(uid); err == nil {
				out.Users = append(out.Users, uid)
			} else if again = append(again, uid); try == 1 || !errors.Is(err, ErrOverbooked) {
				out.Failed = append(out.Failed, Fail{uid, err})
			}
		}
		if todo = again; len(todo) == len(out.Failed) {
			break
		}
	}
	slices.Sort(out.Users)
	return out, nil
}

// sortedUsers returns each user once, without root.
func sortedUsers(uids []int) []int {
	slices.Sort(uids)
	return slices.DeleteFunc(slices.Compact(uids), func(uid int) bool { return uid == 0 })
}

// putInForce makes this the policy that is in force, in one step.
func (p *Policy) putInForce() error {
	if err := os.MkdirAll(Folder, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", Folder, err)
	}
	return errors.Join(replace(InForceFile, append([]byte(p.firstLine()), p.Text...)), os.Chmod(InForceFile, 0o644))
}

// Enable puts a policy in force. On an error nothing more is preloaded than before.
func (p *Policy) Enable(more []int, warn func(string)) (Result, error) {
	lock, err := lockJobs()
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	return p.enable(more, warn)
}

// Apply puts a policy in the place of the one that is in force, and changes the limits of jobs
// that run. The library becomes this program's.
func (p *Policy) Apply(more []int, warn func(string)) (Result, error) {
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

// enable is Enable with the lock held: a Disable at the same time would remove the library, and
// the list of preloads would name one that is not there.
func (p *Policy) enable(more []int, warn func(string)) (Result, error) {
	if err := installLibrary(); err != nil {
		return Result{}, err
	}
	out, err := p.apply(more, warn)
	if err == nil {
		err = p.putInForce()
	}
	if err == nil {
		err = preload(true)
	}
	return out, err
}

// checkInForce returns ErrDisabled where no policy is in force. With the lock held none ends.
func checkInForce() error {
	if _, err := os.Lstat(InForceFile); err != nil {
		return fmt.Errorf("%w (ration policy enable puts one in force)", ErrDisabled)
	}
	return nil
}

// Disable ends the policy. Programs that run stay in their jobs until they end; those that start
// are in none. It returns the users whose jobs are left, as they have processes.
func Disable() (left []int, err error) {
	lock, err := lockJobs()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := preload(false); err != nil {
		return nil, err
	}
	if err := os.Remove(InForceFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("ending the policy: %w", err)
	}
	if err := removeLibrary(); err != nil {
		return nil, fmt.Errorf("removing the library: %w", err)
	}
	for _, run := range job.RunsOf(-1) {
		_ = job.Remove(run, true) // those with processes stay until they end
	}
	for _, uid := range Users() {
		_ = os.Remove(filepath.Join(folderOf(uid), job.ExemptName))
		if err := job.Remove(jobOf(uid), true); err != nil {
			left = append(left, uid)
		}
	}
	return left, nil
}

func ownerOf(st fs.FileInfo) uint32 {
	if sys, is := st.Sys().(*syscall.Stat_t); is {
		return sys.Uid
	}
	return 0
}
