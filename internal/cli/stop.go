package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/tui"
)

// Stopped is what `ration stop --json` and `ration signal --json` print for each job.
type Stopped struct {
	Job       string       `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path      string       `json:"path"`
	Signalled []StoppedPID `json:"signalled"` // processes that got a signal
	Killed    int          `json:"killed"`    // those that got SIGKILL after the grace period
	Left      []StoppedPID `json:"left"`      // those that are still there
}

// StoppedPID is a process, by the kernel's word.
type StoppedPID struct {
	PID  int    `json:"pid"`
	User string `json:"user"`
	Name string `json:"name"`
}

type stopFlags struct {
	grace time.Duration
	yes   bool
}

func newStopCommand(a *app) *cobra.Command {
	var f stopFlags
	cmd := &cobra.Command{
		Use:        "stop JOB...",
		SuggestFor: []string{"kill", "end", "terminate"},
		Short:      "End all processes of jobs",
		Long: `End jobs: send SIGTERM to all processes of each, and SIGKILL to those that are
left after the grace period. SIGCONT follows SIGTERM, so that a stopped process
can clean up, too. These are the processes that hold memory in the job, and
those of its command, with everything that it has started; ration run then ends
as the command does. A command that waits for room leaves the queue, and so do
all programs that wait for their user's ration. The kernel says which processes
they are, by the locks that they hold, and a signal cannot reach another process
that has got such a PID. What ends so does not count as having died.

A JOB is a name that ration ps shows, the path of a region, with a slash in it,
or for root USER/NAME, a job of another user. Before it ends a job of another
user it asks, unless --yes says so.

Exit status: 0 if no process of the jobs is left; 1 if some are left, or may not
be ended by you; 3 if there is no such job.`,
		Example:           "  ration stop train\n  ration stop --grace 1m fold1 fold2\n  sudo ration stop --yes anna/train",
		Args:              argCount(1, -1, "a job"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.eachStopped(args, f.yes, "End", func(name string, j job.Job) (out job.Stopped, err error) {
				if out, err = job.Stop(j, f.grace); err == nil && len(out.Left) == 0 {
					awaitLauncher(name, j)
				}
				return out, err
			})
		},
	}
	cmd.Flags().DurationVar(&f.grace, "grace", tui.StopGrace, "the `time` between SIGTERM and SIGKILL")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask, also for a job of another user")
	return cmd
}

func newSignalCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "signal SIGNAL JOB...",
		Short: "Send a signal to all processes of jobs",
		Long: `Send a signal, as USR1, SIGUSR1 or 10, to all processes of jobs. Which processes
they are, and how a JOB is named, is as for ration stop. SIGCONT follows HUP,
INT, QUIT and TERM, so that a stopped process gets them at once.

Exit status: 0 if a process of each job got the signal; 1 if a job has none any
more, or a process may not get a signal from you; 3 if there is no such job.`,
		Example:           "  ration signal USR1 train\n  ration signal STOP fold1 fold2",
		Args:              argCount(2, -1, "a signal and a job"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := parseSignal(args[0])
			if err != nil {
				return err
			}
			return a.eachStopped(args[1:], yes, "Send "+unix.SignalName(s)+" to", func(name string, j job.Job) (job.Stopped, error) { return signalJob(name, j, s) })
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask, also for a job of another user")
	return cmd
}

// parseSignal parses a signal's name, with or without SIG, or its number.
func parseSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if s := unix.SignalNum(name); s != 0 {
		return s, nil
	}
	var n int
	if _, err := fmt.Sscanf(text, "%d", &n); err == nil && fmt.Sprint(n) == text && unix.SignalName(syscall.Signal(n)) != "" {
		return syscall.Signal(n), nil
	}
	return 0, usageError("%q: no such signal (use a name, as USR1, or a number)", text)
}

// eachStopped calls stop for each job, after a question if it is another user's, and prints what it did.
func (a *app) eachStopped(names []string, yes bool, verb string, stop func(name string, j job.Job) (job.Stopped, error)) error {
	jobs, queued, err := lookUpStarting(names, job.FindFolder)
	if err != nil {
		return err
	}
	for _, q := range queued {
		q.Close() // job.Members finds the command again
	}
	for i := 0; i < len(jobs) && !yes; i++ {
		if err := a.askBefore(verb, names[i], jobs[i]); err != nil {
			return err
		}
	}
	var errs []error
	for i, j := range jobs {
		done, err := stop(names[i], j)
		out := Stopped{Job: nameOf(names[i], j), Path: j.Path, Signalled: pidsOf(done.Asked), Killed: done.Killed, Left: pidsOf(done.Left)}
		printErr := a.print(out, func() {
			if err == nil || len(done.Asked) > 0 {
				a.out.printf("%s\n", stoppedText(names[i], done, runsBeside(j)))
			}
		})
		errs = append(errs, printErr, cmp.Or(err, leftError(names[i], done)))
	}
	return errors.Join(errs...)
}

// launcherTimeout bounds the wait for a launcher, which ends within milliseconds of its command unless it is stopped.
const launcherTimeout = 2 * time.Second

// awaitLauncher waits until ration run has ended, too, of a job whose processes have: until then its name is in use, and
// so is its part of a policy's ration.
func awaitLauncher(name string, j job.Job) {
	if record, is := recorded(name); is {
		j = record
	}
	began := time.Now()
	for pause := time.Millisecond; time.Since(began) < launcherTimeout; pause = min(2*pause, 50*time.Millisecond) {
		if _, _, err := job.TryWait(j); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(pause)
	}
}

// runsBeside returns the names of a user's runs, if the job is that of all other programs of the user.
func runsBeside(j job.Job) (names []string) {
	if uid, is := job.PolicyUser(j.Path); is && !job.IsRun(j.Path) {
		for _, run := range job.RunsOf(uid) {
			names = append(names, run.Title())
		}
	}
	return names
}

// stoppedText says what stop did. runs are names of runs that it did not stop.
func stoppedText(name string, done job.Stopped, runs []string) string {
	if len(done.Asked) == 0 {
		text := oneWord(name) + ": no process of it is left"
		if len(runs) > 0 {
			text += " (runs are jobs of their own: " + strings.Join(runs, ", ") + ")"
		}
		return text
	}
	text := oneWord(name) + ": " + humanfmt.Plural(len(done.Asked), "process got a signal", "processes got a signal")
	if done.Killed > 0 {
		text += fmt.Sprintf(", %d of them SIGKILL", done.Killed)
	}
	return text
}

// leftError returns an error if processes are left.
func leftError(name string, done job.Stopped) error {
	if len(done.Left) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s still there, as pid %d (%s): the kernel has not ended it yet (try again later)", name,
		humanfmt.Plural(len(done.Left), "process is", "processes are"), done.Left[0].PID, done.Left[0].Name)
}

// signalJob sends a signal to all processes of a job. It returns an error if there is none.
func signalJob(name string, j job.Job, s syscall.Signal) (out job.Stopped, err error) {
	out.Asked = job.Members(j)
	defer job.CloseMembers(out.Asked)
	if len(out.Asked) == 0 {
		return out, fmt.Errorf("%s: no process got the signal: none of the job is left (ration ps %s)", name, name)
	}
	return out, job.Signal(j, out.Asked, s)
}

// askBefore asks before a signal goes to processes of another user. It does not ask if none is left.
func (a *app) askBefore(verb, name string, j job.Job) error {
	var st unix.Stat_t
	uid := os.Getuid()
	if err := unix.Lstat(j.Path, &st); err == nil {
		uid = int(st.Uid)
	} else if of, is := job.UserOf(filepath.Base(filepath.Dir(j.Path))); is { // it has no region yet: the user waits for it
		uid = of
	} else if unix.Lstat(filepath.Dir(filepath.Dir(j.Path)), &st) == nil { // its command is in the queue of this folder
		uid = int(st.Uid)
	}
	if uid == os.Getuid() {
		return nil
	}
	owner := proc.UserName(uid)
	if os.Geteuid() != 0 {
		return statusError{fmt.Errorf("%s: it is a job of user %s (only %s and root may do that)", name, owner, owner), ExitFailed}
	}
	members := job.Members(j)
	job.CloseMembers(members)
	if len(members) == 0 {
		return nil
	}
	if _, err := windowSize(os.Stdin); err != nil {
		return usageError("%s: it is a job of user %s, and there is no terminal to ask (use --yes)", name, owner)
	}
	a.err.printf("%s job %s of user %s? [y/N] ", verb, oneWord(name), owner)
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return statusError{errors.New("nothing was done"), ExitFailed}
	}
	return nil
}

func pidsOf(all []job.Member) []StoppedPID {
	out := []StoppedPID{}
	for _, m := range all {
		out = append(out, StoppedPID{m.PID, proc.UserName(m.UID), m.Name})
	}
	return out
}
