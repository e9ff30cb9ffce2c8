package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

type eventsFlags struct {
	follow  bool
	noAgent bool
	kinds   []string
	since   string

	from time.Time // events before it are not printed
}

func newEventsCommand(a *app) *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:        "events [JOB...]",
		SuggestFor: []string{"log", "logs"},
		Short:      "Print what happens to jobs",
		Long: `Print events of jobs, the oldest first: starts, ends, refusals, deaths of
processes, stops (processes that the agent has ended because their job was over
its limit), jobs that have become idle, commands that wait for room (wait, admit
when it started, leave when it gave up), jobs that have fallen asleep, have
woken, or should sleep and cannot, as far as they are still known. To root also
GPUs that have failed and that answer again (gpu-failed, gpu-back).
With --follow, print new events until it is interrupted, and no earlier ones.
--since also limits or extends that: it is a time ago (10m, 7d), a day (today,
yesterday, monday: the latest one), or a time (15:04: the latest one,
2026-01-31, 2026-01-31 15:04, 2026-01-31T15:04:05Z); all is everything that is
known. With JOBs, which are names or paths of regions, print only their events.

A region keeps its latest 256 refusals and 64 deaths. Only an agent (ration
agent) also has events of removed jobs, ends of jobs that no launcher saw, and
events of waiting that is over.
If there is an agent, this command uses it, and prints new events at once;
otherwise it reads the jobs every second. If an agent starts or ends meanwhile,
no event is printed twice. If an agent does not answer, the command continues
without it, and says so on standard error.

With --json each event is a line.

Exit status: 0; 3 if the jobs could not be listed or, without --follow, if there
is no JOB of that name and nothing is known of one.`,
		Example:           "  ration events --follow\n  ration events --since 1h --follow\n  ration events --kind refusal train\n  ration events --follow --json | jq .text",
		Args:              argCount(0, -1, "jobs"),
		ValidArgsFunction: completeJobs(1 << 10),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runEvents(f, args) },
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "also print new events")
	cmd.Flags().StringVar(&f.since, "since", "", "print events since this `time`, or since so long ago; all is every known event")
	cmd.Flags().StringSliceVar(&f.kinds, "kind", nil, "only these `kinds`, as start, refusal, death, idle, wait, sleep")
	cmd.Flags().BoolVar(&f.noAgent, "no-agent", false, "do not use an agent")
	return cmd
}

func (a *app) runEvents(f eventsFlags, names []string) error {
	for _, kind := range f.kinds {
		if !slices.Contains(machine.EventKinds, kind) {
			return usageError("--kind %s: there are %s", kind, strings.Join(machine.EventKinds, ", "))
		}
	}
	var err error
	if f.from, err = f.parseSince(time.Now()); err != nil {
		return err
	}
	p := &eventPrinter{a: a, f: f, names: names, known: map[string]bool{}}
	if !f.follow {
		return p.printKnown()
	}
	for p.err == nil {
		rest := agent.Interval
		if !f.noAgent {
			err := p.ask(context.Background()) // until it ends
			if errors.Is(err, agent.ErrSilent) {
				rest = agent.Rest
			}
			a.noteSilent(err, "this command reads the jobs every second instead")
		}
		if err := p.watch(rest); err != nil {
			return err
		}
	}
	return p.err
}

// parseSince returns the time from which on events are printed.
func (f eventsFlags) parseSince(now time.Time) (time.Time, error) {
	switch {
	case f.since == "" && f.follow:
		return now, nil
	case f.since == "" || f.since == "all":
		return time.Time{}, nil
	}
	return parseTime("--since", f.since, now)
}

// eventPrinter prints each event once.
type eventPrinter struct {
	a     *app
	f     eventsFlags
	names []string
	seen  agent.Seen
	known map[string]bool // names with an event, printed or not
	err   error           // error of writing the output
}

// errWritten ends a stream after a failed write.
var errWritten = errors.New("the output cannot be written")

// ask prints the events of an agent, and follows it. It returns an error if there is no agent, or
// when the agent has ended.
func (p *eventPrinter) ask(ctx context.Context) error {
	c, err := agent.Find()
	if err != nil {
		return err
	}
	return c.Events(ctx, true, func(e machine.Event) error {
		p.a.silent = false // if it becomes silent again, that is reported again
		p.print(e)
		if p.err != nil {
			return errWritten
		}
		return nil
	})
}

// printKnown prints the events in the regions and those of an agent. The agent may have more, but
// may not have scanned since the latest.
func (p *eventPrinter) printKnown() error {
	m, err := node.Jobs()
	if err != nil {
		return statusError{err, ExitOpen}
	}
	all, ended := machine.Events(&machine.Machine{}, &m, time.Now()), map[machine.EventID]time.Time{}
	if c, err := agent.Find(); err == nil && !p.f.noAgent {
		err := c.Events(context.Background(), false, func(e machine.Event) error {
			if e.Kind == machine.JobWaits { // it may have seen the place in the queue at that time
				all = slices.Insert(all, 0, e)
			} else {
				all = append(all, e)
			}
			if e.Kind == machine.JobEnded {
				ended[e.ID()] = e.Time
			}
			return nil
		})
		// It may have seen the end of processes that outlived the command.
		all = slices.DeleteFunc(all, func(e machine.Event) bool {
			at, seen := ended[e.ID()]
			return seen && e.Time.Before(at)
		})
		p.a.noteSilent(err, "events that only it has are missing, such as those of removed jobs")
	}
	slices.SortStableFunc(all, func(a, b machine.Event) int { return a.Time.Compare(b.Time) })
	for _, e := range all {
		p.print(e)
	}
	for _, name := range p.names {
		if _, _, err := lookUpStarting([]string{name}, job.FindFolder); err != nil && !p.known[name] {
			return err
		}
	}
	return p.err
}

// watch prints new events until there is an agent. It first checks for one after rest, and then
// every second.
func (p *eventPrinter) watch(rest time.Duration) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if !p.f.noAgent {
		go func() {
			for after(ctx, rest) {
				if _, err := agent.Find(); err == nil {
					stop()
				}
				rest = agent.Interval
			}
		}()
	}
	for e, err := range machine.Watch(ctx) {
		if err != nil {
			return statusError{err, ExitOpen}
		}
		if e.Kind != machine.Changed {
			p.print(e)
		}
		if p.err != nil {
			return nil // the caller returns the error
		}
	}
	return nil
}

// after waits, and reports whether the context is still valid.
func after(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

func (p *eventPrinter) print(e machine.Event) {
	if p.err != nil || !p.seen.Add(e.ID()) {
		return
	}
	named := len(p.names) == 0
	for _, name := range p.names {
		if isNamed(&e, name) {
			named, p.known[name] = true, true
		}
	}
	if !named || !e.Time.IsZero() && e.Time.Before(p.f.from) || len(p.f.kinds) > 0 && !slices.Contains(p.f.kinds, e.Kind) {
		return
	}
	out := p.a.out
	if p.a.json {
		line, err := json.Marshal(e)
		if err == nil {
			out.ascii = false
			_, err = out.Write(append(escapeJSON(line), '\n'))
		}
		p.err = err
		return
	}
	title := node.ShownName(&machine.Job{Name: e.Job, Path: e.Path, Owner: e.Owner})
	text := e.Text
	if e.Denied == nil && (e.Kind == machine.RequestRefused || e.Kind == machine.ProcessDied) {
		text = title + ": " + text
	}
	clock := clockText(e.Time, time.Now())
	out.printf("%s  %-7s  %s\n", out.style(dim, clock), e.Kind, out.wrap(termtext.Printable(text)+".", len(clock)+11))
	p.err = *out.writeErr
}
