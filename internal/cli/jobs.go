package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

// A job is given as its name, as USER/NAME, or as the path of its region. Names are unique only for
// each folder of jobs, and a user may have several. A name that ration ps shows in one line means the
// job of that line. A plain name means this user's own job. If there is none, for root it means the only
// running job of that name or, if none runs, the only job. A name is looked up once. After that, a
// job of another user is handled by its path, with the care that a path needs which other users can
// change.

// splitUser splits USER/NAME. Anything else is a name or a path.
func splitUser(argument string) (user, name string, is bool) {
	user, name, is = strings.Cut(argument, "/")
	return user, name, is && user != "" && user[0] != '.' && limit.CheckName("job", name) == nil
}

// errSeveral is returned, wrapped, if several jobs have the name.
var errSeveral = errors.New("several users have a job of that name")

// chooseJob returns the index of the job that an argument names, among those that were read, or -1.
func chooseJob(jobs []machine.Job, argument string) (int, error) {
	user, name, ofUser := splitUser(argument)
	var isUsers func(uid int, name string) bool
	if ofUser {
		isUsers = node.IsUser(user)
	}
	var found []int
	for i := range jobs {
		j := &jobs[i]
		switch {
		case strings.Contains(argument, "/") && j.Path == argument:
			return i, nil
		case j.Name != "" && (j.Name == argument || strings.HasSuffix(j.Name, "/"+argument)): // the latter is a run of a policy
			found = append(found, i)
		case ofUser && j.Name == name && j.UID >= 0 && isUsers(j.UID, j.Owner):
			found = append(found, i)
		}
	}
	isShown := func(i int) bool { return ofUser && node.ShownName(&jobs[i]) == argument }
	if at := slices.IndexFunc(found, isShown); at >= 0 && !slices.ContainsFunc(found[at+1:], isShown) {
		return found[at], nil
	}
	for _, better := range []func(j *machine.Job) bool{
		func(j *machine.Job) bool { return !ofUser && node.IsOwn(j) },
		func(j *machine.Job) bool { return j.Name == argument && node.IsOfPolicy(j) }, // a run may have any user's name
		func(j *machine.Job) bool { return j.State != machine.Ended },
	} {
		if some := slices.DeleteFunc(slices.Clone(found), func(i int) bool { return !better(&jobs[i]) }); len(some) > 0 {
			found = some
		}
	}
	switch len(found) {
	case 0:
		return -1, nil
	case 1:
		return found[0], nil
	}
	lines := map[string]int{} // of ration ps, by the name in them
	for _, i := range found {
		lines[node.ShownName(&jobs[i])]++
	}
	var names []string
	for _, i := range found {
		text := node.ShownName(&jobs[i])
		if text == argument || lines[text] > 1 {
			text = jobs[i].Path
		}
		names = append(names, termtext.Printable(text))
	}
	what := errSeveral
	if ofUser {
		what = errors.New("that user has several jobs of that name")
	}
	return -1, statusError{fmt.Errorf("%s: %w (name one of them: %s)", argument, what, strings.Join(names, ", ")), ExitUsage}
}

// ownerAndName returns the form in which other commands accept another user's job.
func ownerAndName(j *machine.Job) string {
	if node.IsOfPolicy(j) || strings.Contains(j.Name, "/") { // the user is in its name already
		return j.Name
	}
	return j.Owner + "/" + j.Name
}

// notAll says why a look-up by name is uncertain: a user whose jobs were not all read may have a
// job of that name too. It returns "" if the look-up is certain.
func notAll(m *machine.Machine) string {
	for _, f := range m.Findings {
		if f.Kind == machine.Unanswering {
			return f.Text
		}
	}
	return ""
}

// findJob returns a job that was read. It reads a job that was not: one at a path, or one of very many.
func findJob(m *machine.Machine, argument string, read func(job.Job) machine.Job) (machine.Job, error) {
	i, err := chooseJob(m.Jobs, argument)
	switch {
	case err != nil:
		return machine.Job{}, err
	case i >= 0:
		return m.Jobs[i], checkAll(m, &m.Jobs[i], argument)
	}
	if user, name, ofUser := splitUser(argument); ofUser && job.AllUsers() { // there may be more jobs than were read
		found, err := jobOfUser(argument, user, name)
		if err != nil {
			return machine.Job{}, err
		}
		if found.Path != "" {
			return read(found), nil
		}
	}
	found, err := job.Find(argument)
	if err != nil {
		return machine.Job{}, withNotAll(noJobOf(argument, err), m)
	}
	return read(found), nil
}

// checkAll refuses a plain name of another user's job if not all jobs were read.
func checkAll(m *machine.Machine, j *machine.Job, argument string) error {
	if why := notAll(m); why != "" && !strings.Contains(argument, "/") && !node.IsOwn(j) {
		return statusError{fmt.Errorf("%s: others may have a job of that name: %s (name it %s)", argument, why, termtext.Printable(ownerAndName(j))), ExitUsage}
	}
	return nil
}

// noJobOf says which part of USER/NAME does not exist.
func noJobOf(argument string, err error) error {
	user, name, ofUser := splitUser(argument)
	if !errors.Is(err, job.ErrNoJob) {
		return err
	}
	if q := lookUpQueued(argument); q != nil {
		q.Close()
		return fmt.Errorf("%s: %w yet (its command waits for room: ration queue)", argument, job.ErrNoJob)
	}
	switch {
	case !ofUser:
		if _, waits := job.WaitingFor(argument); waits {
			return fmt.Errorf("%s: %w yet (a program of that user waits for its ration: ration queue)", argument, job.ErrNoJob)
		}
		if uid, userErr := proc.UID(argument); userErr == nil && uid != os.Getuid() && !job.AllUsers() && job.PolicyInForce() {
			return fmt.Errorf("%s: %w (only root sees other users' jobs)", argument, job.ErrNoJob)
		}
		return suggestJob(err)
	case !job.AllUsers() && user != proc.UserName(os.Geteuid()):
		return fmt.Errorf("%s: %w (only root sees other users' jobs)", argument, job.ErrNoJob)
	}
	return fmt.Errorf("%s: %w (user %s has no job %s, and there is no region at that path)", argument, job.ErrNoJob, user, name)
}

// toWait is an error about a job to wait for. No ended job is suggested: to wait for that returns at once, and its status is
// of something else.
type toWait struct{ error }

func (e toWait) Unwrap() error { return e.error }

func findToWait(nameOrPath string) (job.Job, error) {
	j, err := job.FindFolder(nameOrPath)
	if err != nil {
		err = toWait{err}
	}
	return j, err
}

// suggestJob adds to an error about a mistyped name the job that may be meant.
func suggestJob(err error) error {
	var missing *job.NoJobError
	if !errors.As(err, &missing) {
		return err
	}
	names := missing.Others
	if errors.As(err, new(toWait)) {
		names = names[:missing.Live]
	}
	if found := similarNames(missing.Name, names); len(found) > 0 {
		return fmt.Errorf("%s: %w (did you mean %s?)", missing.Name, job.ErrNoJob, strings.Join(found[:min(len(found), 3)], " or "))
	}
	return err
}

// lookUpJobs finds all jobs that arguments name, or returns an error, before anything is done to one of them. find is
// as for lookUpJob.
func lookUpJobs(names []string, find func(nameOrPath string) (job.Job, error)) (jobs []job.Job, err error) {
	for _, name := range names {
		j, err := lookUpJob(name, find)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// lookUpStarting finds jobs as lookUpJobs does. A job that a command in a queue will make comes before an earlier
// one of that name; find finds the others, and queued has these commands, by index. With an error, jobs are those before the one that it is about.
func lookUpStarting(names []string, find func(nameOrPath string) (job.Job, error)) (jobs []job.Job, queued []*job.Queued, err error) {
	for _, name := range names {
		q, err := lookUpWaiting(name)
		if err != nil {
			return jobs, queued, err
		}
		var j job.Job
		if q != nil {
			j = q.Job()
		} else if j, err = lookUpJob(name, find); errors.Is(err, job.ErrNoJob) {
			is := false
			if j, is = recorded(name); !is {
				j, is = job.WaitingFor(name)
			}
			if !is {
				return jobs, queued, err
			}
			err = nil
		} else if err != nil {
			return jobs, queued, err
		}
		jobs, queued = append(jobs, j), append(queued, q)
	}
	return jobs, queued, nil
}

// lookUpJob finds the job that an argument names, for a command that works on it. This user's own
// job is returned by name, any other by path. find finds jobs without reading those of other users.
func lookUpJob(argument string, find func(nameOrPath string) (job.Job, error)) (job.Job, error) {
	user, name, ofUser := splitUser(argument)
	if ofUser && node.IsUser(user)(os.Geteuid(), proc.UserName(os.Geteuid())) {
		if j, err := inOtherLogin(argument, name); err != nil || j.Path != "" {
			return j, err
		}
		if j, err := find(name); err == nil {
			return j, nil
		}
	}
	if ofUser && job.AllUsers() {
		if j, is := job.OfPolicy(argument); is {
			return j, nil
		}
		if j, err := jobOfUser(argument, user, name); err != nil || j.Path != "" {
			return job.Job{Path: j.Path}, err
		}
	}
	j, err := find(argument)
	if !errors.Is(err, job.ErrNoJob) || !job.AllUsers() || strings.Contains(argument, "/") {
		return j, noJobOf(argument, err)
	}
	m, readErr := node.Jobs()
	if readErr != nil {
		return job.Job{}, readErr
	}
	i, chooseErr := chooseJob(m.Jobs, argument)
	switch {
	case chooseErr != nil:
		return job.Job{}, chooseErr
	case i < 0:
		return j, withNotAll(noJobOf(argument, err), &m)
	}
	return job.Job{Path: m.Jobs[i].Path}, checkAll(&m, &m.Jobs[i], argument)
}

// inOtherLogin returns the job that ration ps shows as USER/NAME to this user: that of another login, if this login has a
// job of that name too. It returns none if one login alone has such a job, or if the job is a policy's.
func inOtherLogin(argument, name string) (job.Job, error) {
	if job.Reserved(name) || len(job.FoldersNamed(name)) < 2 {
		return job.Job{}, nil
	}
	m, err := node.Jobs()
	if err != nil {
		return job.Job{}, err
	}
	i, err := chooseJob(m.Jobs, argument)
	if err != nil || i < 0 || node.IsOwn(&m.Jobs[i]) || node.IsOfPolicy(&m.Jobs[i]) {
		return job.Job{}, err
	}
	return job.Job{Path: m.Jobs[i].Path}, nil
}

// nameOf returns the name by which ration ps shows a job that an argument names; "" for a region at a path.
func nameOf(argument string, j job.Job) string {
	if _, is := job.PolicyUser(j.Path); is {
		return job.ShownName("", j.Path)
	}
	name := j.Name
	if user, own, ofUser := splitUser(argument); name == "" && ofUser && j.Path != argument {
		if !node.IsUser(user)(os.Geteuid(), proc.UserName(os.Geteuid())) {
			return argument
		}
		name = own
	}
	if name == "" && !strings.Contains(argument, "/") {
		name = argument
	}
	// Under a policy it is the record of a command that is counted in a job of its user: a run, or the job of all programs.
	var st unix.Stat_t
	if of, is := job.PolicyUser(job.InfoOf(j).Region); name != "" && is && unix.Lstat(filepath.Dir(j.Path), &st) == nil && int(st.Uid) == of {
		return proc.UserName(of) + "/" + name
	}
	return name
}

// lookUpWaiting is lookUpQueued, and for root it also finds a plain name in the queues of other users, if root has no such
// job. A command that waits counts like a job that runs: the error says if several users have one of that name.
func lookUpWaiting(argument string) (*job.Queued, error) {
	if q := lookUpQueued(argument); q != nil || !job.AllUsers() || strings.Contains(argument, "/") {
		return q, nil
	}
	if _, err := job.FindFolder(argument); err == nil {
		return nil, nil
	}
	m, err := node.Jobs()
	if err != nil {
		return nil, err
	}
	all := slices.Concat(m.Jobs, node.WaitingJobs(m.Waiting))
	i, err := chooseJob(all, argument)
	if err != nil || i < len(m.Jobs) || all[i].Path == job.OfUserPath(all[i].UID) { // the latter waits in root's queue
		return nil, err
	}
	if err := checkAll(&m, &all[i], argument); err != nil {
		return nil, err
	}
	return lookUpQueued(ownerAndName(&all[i])), nil
}

// lookUpQueued returns the command in a queue that will make the job which an argument names, or nil. For root the
// queues of other users are searched for USER/NAME only. The caller closes it.
func lookUpQueued(argument string) *job.Queued {
	user, name, ofUser := splitUser(argument)
	switch {
	case !ofUser && strings.Contains(argument, "/"):
		return nil
	case !ofUser:
		return findQueued(argument)
	case node.IsUser(user)(os.Geteuid(), proc.UserName(os.Geteuid())):
		return findQueued(name)
	case !job.AllUsers():
		return nil
	}
	uid, err := proc.UID(user)
	if err != nil {
		return nil // the search for its job returns the error
	}
	q, _ := inTime(func() *job.Queued { return job.SystemPaths.NamedInQueue(uid, name) }) // jobOfUser says if it is late
	return q
}

// findQueued returns the command in a queue of this user that will make the job of that name, or nil.
func findQueued(name string) *job.Queued {
	for _, folder := range append([]string{job.Folder()}, job.OtherFolders()...) {
		if q := job.FindQueued(folder, name); q != nil {
			return q
		}
	}
	return nil
}

// recorded returns the record of a command under a policy that an argument of root names, USER/NAME. How the command
// ended is in the record only: the user's launcher cannot write into root's folder.
func recorded(argument string) (job.Job, bool) {
	user, name, ofUser := splitUser(argument)
	if !ofUser || !job.AllUsers() {
		return job.Job{}, false
	}
	uid, err := proc.UID(user)
	if err != nil {
		return job.Job{}, false
	}
	j, _ := inTime(func() job.Job { return job.SystemPaths.Recorded(uid, name) })
	return j, j.Path != ""
}

// jobOfUser returns a user's job with a name; if there are two, the running one. The result does
// not depend on other users, nor on how many jobs this user has.
func jobOfUser(argument, user, name string) (job.Job, error) {
	uid, err := proc.UID(user)
	if errors.Is(err, proc.ErrNoUser) {
		return job.Job{}, nil
	}
	if err != nil {
		return job.Job{}, fmt.Errorf("%s: %w (name the path of its region)", argument, err)
	}
	found, answered := inTime(func() []job.Job { return job.SystemPaths.Named(uid, name) })
	if !answered {
		return job.Job{}, fmt.Errorf("%s: the folders of that user could not be read within %s (name the path of its region)", argument, humanfmt.Span(userTimeout))
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var read []machine.Job
	for _, f := range found {
		read = append(read, node.ReadJob(f, node.Options{ReadOnly: true})) // a job that cannot be read counts too
	}
	if i, err := chooseJob(read, argument); err != nil || i >= 0 {
		return job.Job{Name: name, Path: read[max(i, 0)].Path}, err
	}
	return job.Job{}, nil
}

// userTimeout bounds the wait for the folders of one user.
const userTimeout = 2 * time.Second

// inTime returns what read finds in the folders of one user, or false if they do not respond.
func inTime[T any](read func() T) (out T, answered bool) {
	found := make(chan T, 1)
	go func() { found <- read() }()
	select {
	case out = <-found:
		return out, true
	case <-time.After(userTimeout):
		return out, false
	}
}

// withNotAll adds to a "no such job" error that not all jobs were read, if that is so.
func withNotAll(err error, m *machine.Machine) error {
	if why := notAll(m); why != "" && errors.Is(err, job.ErrNoJob) {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// wanted returns a function that reports whether a job is named by an argument. Such jobs are read
// completely.
func wanted(arguments []string) func(*machine.Job) bool {
	return func(j *machine.Job) bool {
		return slices.ContainsFunc(arguments, func(argument string) bool {
			i, err := chooseJob([]machine.Job{*j}, argument)
			return i == 0 || err != nil
		})
	}
}

// fullOf returns options that read the named jobs completely.
func fullOf(readOnly bool, arguments []string) node.Options {
	return node.Options{ReadOnly: readOnly, Full: wanted(arguments)}
}
