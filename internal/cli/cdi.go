package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ration/internal/launch"
	"ration/internal/safepath"
)

func newCDICommand(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "cdi JOB",
		Short: "Write a CDI spec, with which containers join a job",
		Long: `Write a spec of the Container Device Interface for a job that ration create
made. Put it into a folder where Docker, Podman and other engines find specs
(/etc/cdi or /var/run/cdi). Then a container with --device ration/job=JOB joins
the job: the engine mounts the job's region, its limits for reading only, the
library, and an ld.so.preload that names it for every program of the container.

The spec names files of the running system: write it again for a new job, and
after an upgrade for the new library.

Exit status: 0 if it is written; 2 if ration create did not make the job; 3 if
there is no such job.`,
		Example: `  ration create train --mem 10g
  ration cdi train --output /var/run/cdi/ration-train.json
  docker run --gpus all --device ration/job=train IMAGE python train.py`,
		Args:              argCount(1, 1, "a job"),
		ValidArgsFunction: completeJobs(1),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runCDI(args[0], output) },
	}
	cmd.Flags().StringVar(&output, "output", "-", "the `file` to write, in one step; - is standard output")
	return cmd
}

func (a *app) runCDI(name, output string) error {
	s, err := launch.FindStanding(name)
	if err != nil {
		return err
	}
	spec, err := s.CDI()
	if err != nil {
		return err
	}
	if output == "-" {
		return a.out.printJSON(spec)
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	// Replace the file in one step, because engines watch the folder; this also replaces a link.
	if err = os.MkdirAll(filepath.Dir(output), 0o755); err == nil {
		err = safepath.Replace(output, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", output, err)
	}
	return nil
}
