package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/termtext"
	"ration/internal/tui"
	"ration/machine"
)

// topActions are the actions of ration top.
type topActions struct{}

// SetLimit parses text like the arguments of ration limit after the job, and changes the limits.
func (topActions) SetLimit(j machine.Job, text string) (string, error) {
	var f limitFlags
	flags := pflag.NewFlagSet("limit", pflag.ContinueOnError)
	flags.Usage = func() {}
	f.addCompute(flags)
	f.addDevice(flags)
	err := flags.Parse(strings.Fields(text))
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		return "", err
	}
	change, err2 := f.parseChange(flags, flags.Args())
	switch {
	case err2 != nil:
		return "", err2
	case flags.NArg() > 1:
		return "", usageError("%q: a second size (use one size, or one for each device: 0=10g,1=20g)", flags.Arg(1))
	case err != nil || !change.IsSet():
		return "", usageError("%s: not a limit (use a size, like 10g)", text)
	}
	return setLimit(j, change)
}

// Stop ends all processes of a job as ration stop does.
func (topActions) Stop(j machine.Job) (string, error) {
	return onJob(j, func(j job.Job) (job.Stopped, error) { return job.Stop(j, tui.StopGrace) })
}

// Signal sends a signal to all processes of a job as ration signal does.
func (topActions) Signal(j machine.Job, s syscall.Signal) (string, error) {
	name := node.ShownName(&j)
	return onJob(j, func(j job.Job) (job.Stopped, error) { return signalJob(name, j, s) })
}

// onJob finds the job of a row as ration stop does, unless it is another one now, and calls do.
func onJob(j machine.Job, do func(job.Job) (job.Stopped, error)) (string, error) {
	name := node.ShownName(&j)
	if j.State == node.Waiting {
		found, err := findWaitingJob(&j)
		if err != nil {
			return "", fmt.Errorf("%s: %w", oneWord(name), err)
		}
		done, err := do(found)
		return stoppedText(name, done, nil), cmp.Or(err, leftError(name, done))
	}
	found, err := lookUpJob(argumentOf(&j), job.FindFolder)
	if err != nil {
		return "", err
	}
	if now := node.ReadJob(found, node.Options{ReadOnly: true}); now.ID() != j.ID() {
		return "", fmt.Errorf("%s: it has ended, or another job has its name now", oneWord(name))
	}
	done, err := do(found)
	return stoppedText(name, done, runsBeside(found)), cmp.Or(err, leftError(name, done))
}

// errWaitsNoMore is returned if a command is no longer the one in the queue that was shown.
var errWaitsNoMore = errors.New("it waits no more, or another command of its name waits now")

// findWaitingJob finds the job of a row that waits as ration stop does, unless it is another one now.
func findWaitingJob(j *machine.Job) (job.Job, error) {
	if j.Path == "" {
		return job.Job{}, errors.New("what waits there is not known, so it cannot be ended from here")
	}
	jobs, queued, err := lookUpStarting([]string{argumentOf(j)}, job.FindFolder)
	if err != nil {
		return job.Job{}, errors.Join(errWaitsNoMore, err)
	}
	var since int64
	if q := queued[0]; q != nil {
		since = q.Since
		q.Close()
	} else if w, waits := job.WaitingForRation(j.UID); waits && jobs[0].Path == job.OfUserPath(j.UID) {
		since = w.Since
	}
	if since != j.Started.UnixNano() {
		return job.Job{}, errWaitsNoMore
	}
	return jobs[0], nil
}

// errNotIt is returned if a process is no longer the one that was shown.
var errNotIt = errors.New("it has ended, or another process has its PID now")

// Process opens the process, and then asks the kernel whether it is the one that started when that of the row did. If
// the process is still alive after that, it is the right one, and a signal cannot reach another process.
func (topActions) Process(id machine.ProcessID, region string) (*tui.Process, error) {
	h, err := proc.Open(id.PID)
	if err != nil {
		return nil, err
	}
	uid, name, _, err := proc.Owner(id.PID)
	start, startErr := proc.Started(id.PID)
	if err != nil || startErr != nil || start != id.Start || !h.Alive() {
		_ = h.Close()
		return nil, fmt.Errorf("pid %d: %w", id.PID, errNotIt)
	}
	return &tui.Process{PID: id.PID, Name: termtext.Printable(name), User: proc.UserName(uid), Handle: memberHandle{h, region}}, nil
}

// memberHandle is the handle of a process that is in a job, or in none if region is empty.
type memberHandle struct {
	*proc.Handle
	region string // path
}

// Signal sends a signal. If it tells the process to end, its end is no death.
func (h memberHandle) Signal(s syscall.Signal) error {
	if h.region != "" && job.Ends(s) {
		job.Tell(h.region, s, func(p region.Process) bool { return p.Seen == h.PID() })
	}
	return h.Handle.Signal(s)
}
