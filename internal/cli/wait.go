package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/machine"
)

// Waited is what `ration wait --json` prints for each job.
type Waited struct {
	Job     string        `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path    string        `json:"path"`
	Exit    *machine.Exit `json:"exit,omitempty"`    // nil if the job has no command, or if it is unknown
	Unknown bool          `json:"unknown,omitempty"` // its ration run was killed, so how the command ended is not known
	Ended   time.Time     `json:"ended_at,omitzero"` // of the job; zero if processes outlived its command, and nobody waited for them
	Reason  string        `json:"reason,omitempty"`  // why the wait is over without the job's end: timeout, no-such-job, or not-started

	notStarted string // why its latest command was not started; empty if it was
}

// Values of Waited.Reason.
const (
	reasonTimeout    = "timeout"
	reasonNoJob      = "no-such-job"
	reasonNotStarted = "not-started"
)

type waitFlags struct {
	timeout time.Duration // 0 for none
	any     bool
}

func newWaitCommand(a *app) *cobra.Command {
	var f waitFlags
	cmd := &cobra.Command{
		Use:   "wait JOB...",
		Short: "Wait until jobs have ended, and return how",
		Long: `Wait until jobs have ended: no process of their commands runs, and none that has
joined them lives. A JOB is a name that ration ps shows, the path of a region,
with a slash in it, or for root USER/NAME, a job of another user.

It prints the exit status of the job's command and ends with the same. With
several jobs it prints a line for each when it has ended, and ends with the
status of the first JOB that failed, in the order of the arguments. With --any
it returns when one of them has ended, with its status. If several commands
share a job (ration run --join), the status is that of the first that failed.

This works even if a job is removed meanwhile, and after it has ended: the
latest ` + fmt.Sprint(job.Kept) + ` jobs are kept, each until the next job of its name. A later job of
the same name is another job. While a command waits for room (ration run
--wait), its name means the job that it will make; so does the name of a user
whose program waits for the ration of a policy. A job of ration create has no
command: wait returns when no process is in it, prints nothing and ends with 0.

Exit status: that of the job's command, 128 and the signal's number if a signal
ended it; ` + fmt.Sprint(exitTimeout) + ` if the time of --timeout has passed; ` + fmt.Sprint(exitUnknown) + ` if ration run was killed,
so that nothing knows how the command ended; 3 if there is no such job, or if
its command left the queue without starting. If an earlier job of that name is
kept, and the latest ration run of it did not start its command, as one that a
policy has refused, wait says why and ends with the status of that ration run.
With --json each job that has ended is a value. So is each that has not after
--timeout, with the reason timeout, the JOB that does not exist, with the reason
no-such-job, and the one whose latest command was not started, with the reason
not-started.`,
		Example: `  ration wait train
  ration wait train && ration run --mem 10g -- python evaluate.py
  ration wait --timeout 1h fold1 fold2 fold3
  ration wait --any fold1 fold2`,
		Args:              argCount(1, -1, "a job"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runWait(f, args) },
	}
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "wait at most this `time`, as 90s or 2h")
	cmd.Flags().BoolVar(&f.any, "any", false, "return when one of the jobs has ended")
	return cmd
}

// Statuses of ration wait, as timeout(1) and docker have them.
const (
	exitTimeout = 124
	exitUnknown = 125
)

func (a *app) runWait(f waitFlags, names []string) error {
	if f.timeout < 0 {
		return usageError("--timeout: %v has passed already (use a time, as 90s or 2h)", f.timeout)
	}
	jobs, queued, err := lookUpStarting(names, findToWait)
	if errors.Is(err, job.ErrNoJob) {
		err = errors.Join(a.printNotEnded(Waited{Job: names[len(jobs)], Reason: reasonNoJob}), err)
	}
	if err != nil {
		return err
	}
	type result struct {
		i int
		Waited
		err error
	}
	results := make(chan result, len(jobs))
	left := map[int]Waited{} // jobs that have not ended
	for i, j := range jobs {
		if record, is := recorded(names[i]); is && queued[i] == nil {
			j = record
		}
		waited := Waited{Job: nameOf(names[i], j), Path: j.Path}
		left[i] = waited
		report := func(end *job.End, launched bool, err error) {
			r := result{i: i, Waited: waited}
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s: %w (its command was not started)", names[i], job.ErrNoJob)
			}
			r.err, r.Unknown = err, err == nil && launched && end == nil
			if end != nil {
				if r.Exit = (&machine.Exit{Status: end.Status, Signal: end.Signal}); end.Ended != 0 {
					r.Ended = time.Unix(0, end.Ended).UTC()
				}
				if r.notStarted = end.NotStarted; r.notStarted != "" {
					r.Reason = reasonNotStarted
				}
			}
			results <- r
		}
		if queued[i] != nil {
			go func() { report(waitStarted(names[i], queued[i])) }()
		} else if uid, is := job.UserOf(filepath.Base(filepath.Dir(j.Path))); is && waitsForRation(uid) {
			go func() { report(waitGranted(names[i], uid, j)) }()
		} else if end, launched, err := job.TryWait(j); err == nil { // before the timeout begins
			report(end, launched, nil)
		} else {
			go func() { report(job.Wait(j)) }() // it stays blocked if this command returns before the job ends
		}
	}
	var expired <-chan time.Time
	if f.timeout > 0 {
		expired = time.After(f.timeout)
	}
	ends := make([]error, len(jobs))
	for len(left) > 0 {
		var r result
		select {
		case r = <-results: // a job that has ended counts, even if the time is over
		default:
			select {
			case r = <-results:
			case <-expired:
				for i := range jobs {
					if w, is := left[i]; is {
						w.Reason = reasonTimeout
						err = errors.Join(err, a.printNotEnded(w))
					}
				}
				return cmp.Or(err, error(statusError{fmt.Errorf("waiting: %d of %d not ended after %s", len(left), len(jobs), f.timeout), exitTimeout}))
			}
		}
		delete(left, r.i)
		if errors.Is(r.err, job.ErrNoJob) {
			r.Reason = reasonNoJob
			r.err = errors.Join(a.printNotStarted(names[r.i], r.Waited, len(jobs) > 1), r.err)
		}
		if r.err == nil {
			r.err = a.printWaited(names[r.i], r.Waited, len(jobs) > 1)
		}
		if f.any {
			return r.err
		}
		if r.err != nil && len(jobs) > 1 { // only one of the errors is returned
			printError(a.err, r.err)
			r.err = statusError{errReported, exitStatus(statusOf(r.err))}
		}
		ends[r.i] = r.err
	}
	for _, err := range ends {
		if err != nil {
			return err
		}
	}
	return nil
}

// waitStarted waits until a command has left the queue, and then until its job has ended.
func waitStarted(name string, q *job.Queued) (end *job.End, launched bool, err error) {
	started, err := q.Wait()
	q.Close()
	switch {
	case err != nil:
		return nil, false, err
	case !started:
		return nil, false, fmt.Errorf("%s: %w (its command left the queue without starting)", name, job.ErrNoJob)
	}
	return job.Wait(q.Job())
}

func waitsForRation(uid int) bool {
	_, waits := job.WaitingForRation(uid)
	return waits
}

// rationEvery is how often waitGranted looks: users cannot open root's queue, whose locks would tell.
const rationEvery = 200 * time.Millisecond

// waitGranted waits until a program of a user has got its ration, which it waits for in root's queue, and then until the
// user's job has ended.
func waitGranted(name string, uid int, j job.Job) (end *job.End, launched bool, err error) {
	var last job.UserWaiting
	for ; ; time.Sleep(rationEvery) {
		w, waits := job.WaitingForRation(uid)
		if waits {
			last = w
			continue
		}
		start, err := proc.Started(last.PID)
		if alive := err == nil && start == last.Start; !alive || region.Locked(j.Path) {
			break // otherwise it has its promise, and has not joined the job yet
		}
	}
	end, launched, err = job.Wait(j)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w (its program left the queue without starting)", name, job.ErrNoJob)
	}
	return end, launched, err
}

// printNotEnded prints a job that has not ended, with --json only.
func (a *app) printNotEnded(w Waited) error { return a.print(w, func() {}) }

// printNotStarted prints a job that there is not: its command left the queue.
func (a *app) printNotStarted(name string, w Waited, named bool) error {
	return a.print(w, func() {
		if named {
			a.out.printf("%s -\n", oneWord(name))
		}
	})
}

// printWaited prints how a job ended, with its name if there are several. The error has its status.
func (a *app) printWaited(name string, w Waited, named bool) error {
	err := a.print(w, func() {
		if named {
			a.out.printf("%s ", oneWord(name))
		}
		switch {
		case w.Exit != nil:
			a.out.printf("%d\n", w.Exit.Status)
		case w.Unknown:
			a.out.printf("unknown\n")
		case named:
			a.out.printf("-\n")
		}
	})
	switch {
	case err != nil:
		return err
	case w.Unknown:
		return statusError{errors.New(name + ": how its command ended is not known: its ration run was killed before it could write it down"), exitUnknown}
	case w.notStarted != "":
		return statusError{fmt.Errorf("%s: its latest command was not started: %s", name, w.notStarted), w.Exit.Status}
	case w.Exit != nil && w.Exit.Status != 0:
		return statusError{errReported, w.Exit.Status}
	}
	return nil
}
