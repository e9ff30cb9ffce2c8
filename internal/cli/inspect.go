package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/node"
	"ration/machine"
)

// Inspection is what `ration inspect` prints: everything about one job.
type Inspection struct {
	machine.Job
	Findings []machine.Finding `json:"findings"` // findings about this job
}

func newInspectCommand(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect JOB",
		Short: "Print everything about one job as JSON",
		Long: `Print everything about one job, ended or not, as one JSON value: the job as in
ration ps --json, with the command, CPU and host memory of each process, and the
findings about it. JOB is a name that ration ps
shows, the path of a region, with a slash in it, or for root USER/NAME, a job
of another user. Nothing is changed.

With --format a Go template is printed instead, over the job, as in ration ps.

Exit status: 0; 3 if there is no such job, or its region could not be read.
Then everything else about the job is still printed.`,
		Example:           "  ration inspect train\n  ration inspect train --format '{{json .refusals}}'",
		Args:              argCount(1, 1, "one job"),
		ValidArgsFunction: completeJobs(1),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runInspect(args[0], format) },
	}
	cmd.Flags().StringVar(&format, "format", "", "print this Go `template` instead of JSON")
	return cmd
}

func (a *app) runInspect(name, format string) error {
	parsed, err := parseJobTemplate(format)
	if err != nil {
		return err
	}
	opts := fullOf(true, []string{name})
	m, err := node.Read(opts)
	if err != nil && !strings.ContainsRune(name, os.PathSeparator) {
		return err
	}
	j, err := findJob(&m, name, func(j job.Job) machine.Job { return node.ReadJob(j, opts) })
	if err != nil {
		return err
	}
	jobs := []machine.Job{j}
	(&node.HostMeter{}).AddHostUse(jobs)
	addPolicySleep(jobs)
	j = jobs[0]
	out := Inspection{Job: j, Findings: []machine.Finding{}}
	for _, f := range m.Findings {
		if f.Path == j.Path {
			out.Findings = append(out.Findings, f)
		}
	}
	if parsed != nil {
		err = a.printEach([]machine.Job{j}, parsed)
	} else {
		err = a.out.printJSON(out)
	}
	if err == nil && j.Err() != nil {
		err = statusError{j.Err(), ExitOpen}
	}
	return err
}
