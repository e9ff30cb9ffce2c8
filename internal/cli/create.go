package cli

import (
	"github.com/spf13/cobra"

	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
)

// Created is what `ration create --json` prints.
type Created struct {
	Job  string `json:"job"`
	Path string `json:"path"` // of its region
}

func newCreateCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a job without a command, for containers and batch systems",
		Long: `Make a job that stays until ration rm removes it, also while it has no process.
Programs join it in a container (ration cdi), in a mount namespace (ration
mount), or with ration run --join --name NAME. They share its limits, which are
written as those of ration run.

A job of root is for programs of all users. Its limits are in a file that only
root can write, and its region is on a small file system of its own. A limit
for one device (0=10g) leaves the others without a limit; 1m,0=10g closes them,
because no program can use a device with 1 MiB. A percentage is a part of what
all programs together can have, without what the driver reserves for itself.

A user with a ration cannot make one: all programs of that user are in the
ration, and ration run --mem divides it.

Exit status: 0 if there is a new job; 2 if the name is in use, or if you have a
ration; 1 otherwise.`,
		Example: `  ration create train --mem 10g --compute 30%
  ration rm train`,
		Args:              argCount(1, 1, "the name of the job"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.runCreate(cmd, f, args[0]) },
	}
	f.addLimits(cmd.Flags())
	return cmd
}

func (a *app) runCreate(cmd *cobra.Command, f runFlags, name string) error {
	f.plan.Name, f.plan.Warn = name, a.warn
	if err := f.readSettings(cmd); err != nil {
		return err
	}
	if err := checkNewName("", name); err != nil {
		return err
	}
	if err := f.plan.Create(); err != nil {
		return err
	}
	path, err := job.RegionPath(name)
	if err != nil {
		return err
	}
	return a.print(Created{name, path}, func() { a.out.printf("created %s\n", name) })
}

// checkNewName returns an error for a name that a job cannot have. source is the flag with the
// name, if any.
func checkNewName(source, name string) error {
	if err := limit.CheckName(source, name); err != nil {
		return err
	}
	if job.Reserved(name) {
		if source != "" {
			source += " "
		}
		return usageError("%s%q: this name is reserved (choose another)", source, name)
	}
	return nil
}

func newMountCommand(*app) *cobra.Command {
	return &cobra.Command{
		Use:   "mount JOB",
		Short: "Put all programs of this mount namespace into a job",
		Long: `Put all programs of this mount namespace into a job that ration create made,
whatever their user and environment, as ration run --keep does for its command.
It is for launchers that run as root and give the programs they start a mount
namespace of their own, such as Slurm's plugin. In the namespace of the whole
machine it is refused.

Exit status: 0 if everything is mounted. After any other status the programs
must not be started, because a part may be missing.`,
		Example:           `  unshare --mount sh -c 'ration mount train && exec setpriv --reuid=ann --regid=ann --init-groups sh'`,
		Args:              argCount(1, 1, "a job"),
		ValidArgsFunction: completeJobs(1),
		RunE:              func(_ *cobra.Command, args []string) error { return launch.Mount(args[0]) },
	}
}
