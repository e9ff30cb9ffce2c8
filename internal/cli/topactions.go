package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
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

// errNotIt is returned if a process is no longer the one that was shown.
var errNotIt = errors.New("it has ended, or another process has its PID now")

// Process opens the process first, and then asks the kernel again whether its PID is that of the
// row: by the lock of the job's slot, or by the driver's list. If the process is still alive after
// that, it is the right one, and a signal cannot reach another process.
func (topActions) Process(j *machine.Job, p machine.Process) (*tui.Process, error) {
	h, err := proc.Open(p.HostPID)
	if err != nil {
		return nil, err
	}
	uid, name, _, err := proc.Owner(p.HostPID)
	found := err == nil && listed(j, p)
	if !found || !h.Alive() {
		_ = h.Close()
		return nil, fmt.Errorf("pid %d: %w", p.HostPID, errNotIt)
	}
	return &tui.Process{PID: p.HostPID, Name: termtext.Printable(name), User: proc.UserName(uid), Handle: h}, nil
}

// listed reads the job or the list again, and reports whether the kernel confirms that the process
// is still there.
func listed(j *machine.Job, p machine.Process) bool {
	if j == nil {
		m, err := node.Read(node.Options{ReadOnly: true})
		return err == nil && slices.ContainsFunc(m.Outside, func(o machine.Outside) bool { return o.PID == p.HostPID && o.UID == p.UID })
	}
	now := node.ReadJob(job.Job{Name: j.Name, Path: j.Path}, node.Options{ReadOnly: true})
	return slices.ContainsFunc(now.Processes, func(q machine.Process) bool {
		return q.Verified && q.State != machine.Dead && q.HostPID == p.HostPID && q.Slot == p.Slot && q.Joined.Equal(p.Joined)
	})
}
