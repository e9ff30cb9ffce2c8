package cli

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/proc"
)

// Queued is a command that waits for room, as `ration queue --json` prints it.
type Queued struct {
	Place int            `json:"place"`          // 1 is the next to start
	Job   string         `json:"job,omitempty"`  // name of the job that it will be; empty if unknown
	User  string         `json:"user,omitempty"` // whose queue it is
	PID   int            `json:"pid,omitempty"`  // of its ration run; 0 if unknown
	Since time.Time      `json:"since,omitzero"` // when it began to wait
	Wants []QueuedMemory `json:"wants"`          // memory that it waits for
}

// QueuedMemory is the memory of one device that a command waits for.
type QueuedMemory struct {
	Device int    `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

// Queue is what `ration queue --json` prints.
type Queue struct {
	Waiting []Queued `json:"waiting"` // in order
}

func newQueueCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "queue",
		SuggestFor: []string{"waiting", "squeue"},
		Short:      "Show the commands that wait for room",
		Long: `Show the commands of ration run --wait that wait for room on the GPUs, in the
order in which they will start. Each user has a queue, root too, and this shows
the caller's. To take a command out of the queue, end its ration run: Ctrl-C, or
kill PID.

Exit status: 0, also if none waits.`,
		Example: "  ration queue\n  ration queue --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runQueue() },
	}
}

func (a *app) runQueue() error {
	waiting, err := job.Queue(job.Folder())
	if err != nil {
		return err
	}
	user := proc.UserName(job.User())
	out := Queue{Waiting: []Queued{}}
	for i, w := range waiting {
		q := Queued{Place: i + 1, Job: w.Job, User: user, Wants: []QueuedMemory{}}
		if start, err := proc.Started(w.PID); w.PID > 0 && err == nil && start == w.Start {
			q.PID = w.PID
		}
		if w.Since > 0 {
			q.Since = time.Unix(0, w.Since).UTC()
		}
		for _, d := range slices.Sorted(maps.Keys(w.Wants)) {
			q.Wants = append(q.Wants, QueuedMemory{d, w.Wants[d]})
		}
		out.Waiting = append(out.Waiting, q)
	}
	return a.print(out, func() {
		if len(out.Waiting) == 0 {
			a.out.printf("No command of %s waits for room.\n", user)
			return
		}
		printTable(a.out, queueColumns, out.Waiting)
	})
}

var queueColumns = []column[Queued]{
	{"PLACE", true, func(q Queued) string { return strconv.Itoa(q.Place) }, nil},
	{"JOB", false, func(q Queued) string { return cmp.Or(q.Job, "-") }, nil},
	{"PID", true, func(q Queued) string {
		if q.PID == 0 {
			return "-"
		}
		return strconv.Itoa(q.PID)
	}, nil},
	{"WAITS FOR", false, func(q Queued) string {
		wants := map[int]uint64{}
		for _, w := range q.Wants {
			wants[w.Device] = w.Bytes
		}
		return cmp.Or(launch.WantsText(wants), "-")
	}, nil},
	{"SINCE", true, func(q Queued) string {
		if q.Since.IsZero() {
			return "-"
		}
		return humanfmt.Span(time.Since(q.Since).Truncate(time.Second))
	}, nil},
}
