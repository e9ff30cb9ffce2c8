package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/agent/privsep"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/internal/policy"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/sleep"
	"ration/machine"
)

// Slept is what `ration sleep --json` and `ration wake --json` print for each job.
type Slept struct {
	Job       string        `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path      string        `json:"path"`
	State     string        `json:"state"`     // asleep or awake
	Changed   bool          `json:"changed"`   // it was not so before
	Processes int           `json:"processes"` // processes of the job that hold device memory, or have it aside
	Memory    []SleptMemory `json:"memory"`    // that memory
	Seconds   float64       `json:"seconds"`   // how long it took
}

// SleptMemory is memory of one device.
type SleptMemory struct {
	Device int    `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

type sleepFlags struct {
	wake string
	busy time.Duration
}

func newSleepCommand(a *app) *cobra.Command {
	var f sleepFlags
	cmd := &cobra.Command{
		Use:   "sleep JOB...",
		Short: "Put the GPU memory of jobs aside, into host memory",
		Long: `Put jobs to sleep: the driver moves all GPU memory of their processes into host
memory, and the GPU has that room for others. The programs are not told, and go
on; a call to the GPU waits until the job is awake again, with all memory at the
same addresses. The next such call wakes the job (--wake auto), or only ration
wake does (--wake manual).

A job that sleeps holds nothing: its limits count for no command that waits for
room (ration run --wait), and it wakes when there is room for them again, in its
turn in that queue. It is never brought back into a GPU that is full.

A JOB is named as for ration stop. Jobs with managed memory, memory shared with
other processes, MPS, or a driver before 570 cannot sleep, and stay as they are;
nor can a job that is working, or one that the host has no memory for.

Exit status: 0 if all jobs sleep; 1 if one could not be put to sleep; 3 if there
is no such job.`,
		Example:           "  ration sleep notebook\n  ration sleep --wake manual fold1 fold2",
		Args:              argCount(1, -1, "a job"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkWake(f.wake); err != nil {
				return err
			}
			return a.eachSleeper(args, "asleep", []string{"sleep", "--wake", f.wake, "--busy", f.busy.String()}, f.busy+ownerTime, func(r *region.Region, _ job.Job) (sleep.Result, error) {
				defer job.QueueChanged()
				return sleep.Sleep(r, sleep.Options{Manual: f.wake == wakeManual, Busy: f.busy})
			})
		},
	}
	cmd.Flags().StringVar(&f.wake, "wake", wakeAuto, "`how` the job wakes: auto, by its next call to the GPU, or manual")
	cmd.Flags().DurationVar(&f.busy, "busy", 2*time.Second, "the `time` that work on the GPU may still take")
	return cmd
}

func newWakeCommand(a *app) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "wake JOB...",
		Short: "Bring back the GPU memory of jobs that sleep",
		Long: `Wake jobs that ration sleep has put to sleep: the driver brings all their memory
back, to the same addresses, and calls that waited go on. Before that all of it
is charged again, on all GPUs, and the GPUs must have room for the job's limits;
if they have not, the job sleeps on. With --wait it waits for room, in the queue
of ration run --wait; --wait=10m for no longer than that.

If a process that put the job to sleep or woke it was killed in the middle, this
finishes its work.

Exit status: 0 if all jobs are awake; 1 if one is not; ` + fmt.Sprint(exitTimeout) + ` if the time of --wait
has passed; 3 if there is no such job.`,
		Example:           "  ration wake notebook\n  ration wake --wait=10m fold1",
		Args:              argCount(1, -1, "a job"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE: func(cmd *cobra.Command, args []string) error {
			again, most := []string{"wake"}, ownerTime
			how := launch.Wait{Most: -1, Tell: func(text string) { a.err.printf("ration: %s\n", text) }}
			if cmd.Flags().Changed("wait") {
				if _, err := time.ParseDuration(args[0]); err == nil && wait == 0 {
					return usageError("%q is taken as a job (write the time as --wait=%[1]s)", args[0])
				}
				how.Most = wait
				again = append(again, "--wait="+wait.String())
				if most += wait; wait == 0 {
					most = 0
				}
			}
			return a.eachSleeper(args, "awake", again, most, func(r *region.Region, j job.Job) (sleep.Result, error) {
				began := time.Now()
				out, err := sleep.WakeInTurn(r, j, how)
				if err != nil && how.Most > 0 && (errors.Is(err, launch.ErrNoRoom) || time.Since(began) > how.Most) {
					err = statusError{err, exitTimeout}
				}
				return out, err
			})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for room, for no longer than this `time` if there is one")
	cmd.Flags().Lookup("wait").NoOptDefVal = "0s"
	return cmd
}

// eachSleeper calls do for each job, and prints the result. again is the command that does the same as another user,
// and most how long that may take; 0 is any time.
func (a *app) eachSleeper(names []string, state string, again []string, most time.Duration, do func(*region.Region, job.Job) (sleep.Result, error)) error {
	jobs, err := lookUpJobs(names, job.Find) // not the record of a run whose region is root's
	if err != nil {
		return err
	}
	var errs []error
	for i, j := range jobs {
		var out sleep.Result
		uid, gid, other, err := otherOwner(j)
		switch {
		case other:
			end := a.showMoveOfOther(j, names[i])
			out, err = asOwner(uid, gid, most, j.Path, again)
			end()
		case err == nil:
			out, err = a.oneSleeper(j, names[i], do)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", names[i], err))
			continue
		}
		shown := Slept{Job: nameOf(names[i], j), Path: j.Path, State: state, Changed: out.Changed, Processes: out.Processes, Memory: []SleptMemory{}, Seconds: out.Took.Seconds()}
		sum := uint64(0)
		for d, bytes := range out.Bytes {
			if bytes > 0 {
				shown.Memory = append(shown.Memory, SleptMemory{d, bytes})
				sum += bytes
			}
		}
		errs = append(errs, a.print(shown, func() { a.out.printf("%s\n", sleptText(names[i], &shown, sum)) }))
	}
	return errors.Join(errs...)
}

func (a *app) oneSleeper(j job.Job, name string, do func(*region.Region, job.Job) (sleep.Result, error)) (sleep.Result, error) {
	if s := node.ReadJob(j, node.Options{ReadOnly: true}); s.State == machine.Ended {
		return sleep.Result{}, errors.New("it has ended")
	}
	r, err := region.Open(j.Path, region.Options{NoCreate: true})
	if err != nil {
		return sleep.Result{}, err
	}
	defer r.Close()
	defer a.showMove(moversOf(r), name, r.Sleep)()
	return do(r, j)
}

// sleptText says what was done.
func sleptText(name string, s *Slept, bytes uint64) string {
	if !s.Changed {
		return fmt.Sprintf("%s is %s already", oneWord(name), s.State)
	}
	what := "put aside"
	if s.State == "awake" {
		what = "back"
	}
	return fmt.Sprintf("%s is %s: %s of %s %s in %.1f s", oneWord(name), s.State, humanfmt.Bytes(bytes),
		humanfmt.Plural(s.Processes, "process", "processes"), what, s.Seconds)
}

// otherOwner returns the owner of a job, if that is another user and this is root: the driver moves memory only for the
// process's own user, and root must not use what a tenant can write.
func otherOwner(j job.Job) (uid, gid uint32, other bool, err error) {
	if os.Geteuid() != 0 {
		return 0, 0, false, nil
	}
	dir, err := safepath.OpenFolder(filepath.Dir(j.Path))
	if err != nil {
		return 0, 0, false, fmt.Errorf("looking for the owner of %s: %w", j.Path, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := safepath.StatAt(dir, filepath.Base(j.Path), &st); err != nil {
		return 0, 0, false, fmt.Errorf("looking for the owner of %s: %w", j.Path, err)
	}
	gid = st.Gid
	if primary, err := proc.PrimaryGroup(int(st.Uid)); err == nil {
		gid = primary // a region that root made for a user has root's group
	}
	return st.Uid, gid, st.Uid != 0, nil
}

// ownerTime is how long a command that runs as the owner of a job may take, besides a wait that was asked for.
const ownerTime = 10 * time.Minute

// wakeBudget bounds the time for which jobs of other users wake, all together: their users can make it last.
type wakeBudget struct {
	until time.Time
	late  map[uint32]bool // users with a job that did not wake in its time
}

// wakeLeftTime is how long wakeLeft may take.
const wakeLeftTime = time.Minute

// spend calls wake for a job of a user, if there is time left.
func (b *wakeBudget) spend(uid uint32, wake func(most time.Duration) error) error {
	most := time.Until(b.until) / 2 // so that other users have a part
	if b.late[uid] || most < time.Second {
		return errors.New("no time was left")
	}
	err := wake(most)
	if errors.Is(err, context.DeadlineExceeded) {
		b.late[uid] = true
		err = fmt.Errorf("it did not wake in %.0f s", most.Seconds())
	}
	return err
}

// wakeLeft wakes the jobs that a policy has left asleep: what would wake them for a program has ended with the policy.
func (a *app) wakeLeft(left []job.Job) {
	b := wakeBudget{time.Now().Add(wakeLeftTime), map[uint32]bool{}}
	for _, j := range left {
		r, err := region.OpenReadOnly(j.Path)
		if err != nil {
			continue
		}
		now, err := r.Sleep()
		_ = r.Close()
		if err != nil || now.State() != abi.Asleep || now.Manual() != 0 {
			continue
		}
		name := job.ShownName(j.Name, j.Path)
		uid, gid, other, err := otherOwner(j)
		if err == nil && other {
			err = b.spend(uid, func(most time.Duration) error {
				defer a.showMoveOfOther(j, name)()
				_, err := asOwner(uid, gid, most, j.Path, []string{"wake"})
				return err
			})
		}
		if err != nil {
			a.warn(fmt.Sprintf("waking job %s: %v (ration wake %s tries again; with --wait, when there is room)", name, err, name))
		}
	}
}

// driverVariable matches the variables by which the driver is found and configured. The user gets no other of root's.
var driverVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(LD_LIBRARY_PATH=|FAKEGPU|CUDA_|NVIDIA_)`)
})

// asOwner runs a command of ration as the owner of a job, and returns its result. Its user can change all that the
// process does and answers, except for how long that takes.
func asOwner(uid, gid uint32, most time.Duration, path string, args []string) (out sleep.Result, err error) {
	ctx := context.Background()
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append(append([]string{"ration", "--json"}, args...), "--", path)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return !driverVariable().MatchString(v) }), "PATH=/usr/bin:/bin")
	if folder := filepath.Dir(filepath.Dir(path)); folder != job.RootFolder {
		cmd.Env = append(cmd.Env, job.EnvFolder+"="+folder) // which has the queue
	}
	answer := &privsep.FirstBytes{Most: 64 << 10}
	cmd.Stdout = answer
	err = privsep.RunAs(ctx, cmd, uid, gid)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if _, text, found := strings.Cut(err.Error(), "ration: "+path+": "); found { // what it says about the job
			err = errors.New(text)
		}
		return out, statusError{fmt.Errorf("as user %s: %w", proc.UserName(int(uid)), err), max(exit.ExitCode(), 1)}
	case err != nil:
		return out, fmt.Errorf("as user %s: %w", proc.UserName(int(uid)), err)
	}
	var s Slept
	if err := json.Unmarshal(answer.Bytes, &s); err != nil {
		return out, fmt.Errorf("reading the answer of user %s's process: %w", proc.UserName(int(uid)), err)
	}
	out = sleep.Result{Changed: s.Changed, Processes: s.Processes, Took: time.Duration(s.Seconds * float64(time.Second))}
	for _, m := range s.Memory {
		if uint(m.Device) < uint(len(out.Bytes)) {
			out.Bytes[m.Device] = m.Bytes
		}
	}
	return out, nil
}

// newCallsCommand returns the command that asks the driver to move memory.
func newCallsCommand(*app) *cobra.Command {
	return &cobra.Command{Use: sleep.Calls, Hidden: true, Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return sleep.ServeCalls(os.Stdin, os.Stdout) }}
}

// newSleepWhenIdleCommand returns the command that the service of a policy starts for a job with sleep_after.
func newSleepWhenIdleCommand(*app) *cobra.Command {
	return &cobra.Command{Use: policy.IdleCommand + " PATH AFTER", Hidden: true, Args: argCount(2, 2, "a region and a time"),
		RunE: func(_ *cobra.Command, args []string) error {
			after, err := time.ParseDuration(args[1])
			if err != nil || after < leastSleepAfter {
				return usageError("%s: not a time", args[1])
			}
			jobs, err := lookUpJobs(args[:1], job.Find)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal()
			defer stop()
			sleep.WhenIdle(ctx, jobs[0], "", sleep.Rule{After: after, Room: eachLine(os.Stdin), Report: policy.ReportUnused(os.Stdout)}, func(string) {})
			return nil
		}}
}

// addPolicySleep adds after which time the policy in force puts jobs to sleep that do not say so themselves: the users'
// jobs and runs, whose folders the process that watches them cannot write.
func addPolicySleep(jobs []machine.Job) {
	var p *policy.Policy
	for i := range jobs {
		j := &jobs[i]
		uid, ruled := job.PolicyUser(j.Path)
		if !ruled || j.SleepAfter != 0 || j.State == machine.Ended {
			continue
		}
		var err error
		if p == nil {
			if p, err = policy.InForce(); err != nil {
				return
			}
		}
		if rule, err := p.For(uid); err == nil && rule != nil {
			j.SleepAfter = uint64(rule.SleepAfter.Milliseconds())
		}
	}
}

// eachLine returns a channel with a value for each line that is read.
func eachLine(in io.Reader) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		for s := bufio.NewScanner(in); s.Scan(); {
			out <- struct{}{}
		}
	}()
	return out
}

// newSleepWaiterCommand returns the command that wakes a job when a call wants it awake.
func newSleepWaiterCommand(*app) *cobra.Command {
	return &cobra.Command{Use: sleep.Waiter + " PATH SLEEP WANTED", Hidden: true, Args: argCount(3, 3, "a region and two counts"),
		RunE: func(_ *cobra.Command, args []string) error {
			count, err1 := strconv.ParseUint(args[1], 10, 64)
			wanted, err2 := strconv.ParseUint(args[2], 10, 64)
			if err := errors.Join(err1, err2); err != nil {
				return usageError("%s %s: not two counts", args[1], args[2])
			}
			jobs, err := lookUpJobs(args[:1], job.Find)
			if err != nil {
				return err
			}
			r, err := region.Open(args[0], region.Options{NoCreate: true})
			if err != nil {
				return err
			}
			defer r.Close()
			return sleep.WaitToWake(r, jobs[0], count, wanted)
		}}
}
