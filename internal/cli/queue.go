package cli

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/machine"
)

// Queue is what `ration queue --json` prints.
type Queue struct {
	Waiting []machine.Waiting `json:"waiting"` // in the order of each user's queue
}

func newQueueCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "queue",
		SuggestFor: []string{"waiting", "squeue"},
		Short:      "Show the commands that wait for room",
		Long: `Show the commands of ration run --wait that wait for room on the GPUs, in the
order in which they will start. Each user has a queue, root too. Root sees all
of them, others their own. To take a command out of the queue: Ctrl-C, or ration
stop JOB.

Under a policy the users that wait for a ration are shown as well, and jobs that
wait to wake; they have one queue together. A command of a user without a ration
is in both: the ration comes first. QUEUE then says which queue a place is in:
that of the rations, or the user's own. In JSON, what is in the former has the
path of the job of all programs of its user, /run/ration/user-UID/region.

Exit status: 0, also if none waits.`,
		Example: "  ration queue\n  ration queue --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runQueue() },
	}
}

func (a *app) runQueue() error {
	m, err := node.Jobs()
	if err != nil {
		return err
	}
	out := Queue{Waiting: m.Waiting}
	if out.Waiting == nil {
		out.Waiting = []machine.Waiting{}
	}
	return a.print(out, func() {
		defer a.printFindings(slices.DeleteFunc(m.Findings, func(f machine.Finding) bool { return f.Kind != machine.PolicyDown }), true)
		if len(out.Waiting) > 0 {
			printTable(a.out, queueColumns, out.Waiting)
			return
		}
		of := proc.UserName(job.User())
		if job.AllUsers() {
			of = "any user"
		}
		a.out.printf("No command of %s waits for room.\n", of)
	})
}

// isForRation reports whether a user waits for a ration of the policy, or to get it back, in the queue that all users share.
func isForRation(w machine.Waiting) bool { return w.Path == job.OfUserPath(w.UID) }

var queueColumns = []column[machine.Waiting]{
	{"USER", false, func(w machine.Waiting) string { return w.Owner }, func(w machine.Waiting) bool { return w.UID != job.User() }},
	{"QUEUE", false, func(w machine.Waiting) string { return map[bool]string{false: "own", true: "rations"}[isForRation(w)] }, isForRation},
	{"PLACE", true, func(w machine.Waiting) string { return strconv.Itoa(w.Place) }, nil},
	{"JOB", false, func(w machine.Waiting) string { return cmp.Or(w.Job, "-") }, nil},
	{"PID", true, func(w machine.Waiting) string {
		if w.PID == 0 {
			return "-"
		}
		return strconv.Itoa(w.PID)
	}, nil},
	{"WAITS FOR", false, func(w machine.Waiting) string { return cmp.Or(w.WantsText(), "-") }, nil},
	{"SINCE", true, func(w machine.Waiting) string {
		if w.Since.IsZero() {
			return "-"
		}
		return humanfmt.Span(time.Since(w.Since).Truncate(time.Second))
	}, nil},
}
