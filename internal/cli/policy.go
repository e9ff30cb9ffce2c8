package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/embedded"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/policy"
	"ration/internal/proc"
)

// policyService is the systemd unit of the policy's service.
const policyService = "ration-policy.service"

func newPolicyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "policy",
		SuggestFor: []string{"config", "user", "users"},
		Short:      "Give every user of the machine a ration",
		Long: `Give every user of this machine a ration of its GPUs, by a file of the
operator's, ` + policy.ConfigFile + `. Every CUDA program of a user is
then in that user's job, without typing ration: also after SSH, su, cron, and
env -i. Only root can change the limits.

  overbook = false             # may all rations together exceed a device?
  missing = "closed"           # no CUDA without a job; "open": not limited

  [everybody]                  # users without a rule of their own
  memory = "8g"                # of one GPU; with devices = 2 of each of two

  [groups.students]            # the first group in the file applies
  memory = "4g"
  compute_max = "50%"
  priority = "low"             # get out of the way of jobs of high priority

  [users.anna]
  memory = "20g"
  compute = "30%"
  largest = { memory = "40g" } # anna may ask for more, up to this
  max_priority = "high"        # and for high priority; without it, for normal

Limits are written as for ration run. A rule with exempt = true leaves its users
out. Root is never rationed.`,
		Example: "  ration policy check\n  ration policy enable\n  ration policy show anna",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(*cobra.Command, []string) {
			// The library uses root's own folder, whatever the environment says.
			_ = os.Unsetenv(job.EnvFolder)
			_ = os.Unsetenv(embedded.EnvFolder)
		},
	}
	cmd.AddCommand(newPolicyCheckCommand(a), newPolicyEnableCommand(a), newPolicyApplyCommand(a), newPolicyDisableCommand(a), newPolicyShowCommand(a),
		newPolicyAskCommand(a), newPolicyMoveCommand(a), newPolicyKeepCommand(a))
	return cmd
}

// PolicyChecked is what `ration policy check --json` prints.
type PolicyChecked struct {
	File     string           `json:"file"`
	Right    bool             `json:"right"`
	Problems []policy.Problem `json:"problems"`
	Warnings []policy.Problem `json:"warnings,omitempty"` // of a file that is right: what is probably a mistake
}

func newPolicyCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a policy, and change nothing",
		Long: `Check a file, by default ` + policy.ConfigFile + `, as a whole: its form, its
limits, the users and groups, and whether the rations of the users that it
names fit on the devices of this machine. Each problem is printed as
FILE:LINE:COLUMN, and so is what is valid and probably a mistake.

Exit status: 0 if it is right, 2 if not.`,
		Example: "  ration policy check\n  ration policy check new.toml",
		Args:    argCount(0, 1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			file := policy.ConfigFile
			if len(args) > 0 {
				file = args[0]
			}
			p, err := policy.Check(file)
			var wrong *policy.ConfigError
			if a.json && errors.As(err, &wrong) {
				if err := a.out.printJSON(PolicyChecked{File: file, Problems: wrong.Problems}); err != nil {
					return err
				}
				return statusError{errReported, ExitUsage}
			}
			if err != nil {
				return err
			}
			return a.print(PolicyChecked{File: file, Right: true, Problems: []policy.Problem{}, Warnings: p.Warnings}, func() {
				a.warnPolicy(p, file)
				a.out.printf("%s is right: %s, %s, and a rule for everybody else.\n", file,
					humanfmt.Plural(len(p.Users), "user", "users"), humanfmt.Plural(len(p.Groups), "group", "groups"))
				if p.NoDriver {
					a.out.paragraph(plain, 0, "There is no driver here: whether the rations fit on the GPUs was not checked.")
				}
			})
		},
	}
}

// warnPolicy prints what is probably a mistake in a valid file.
func (a *app) warnPolicy(p *policy.Policy, file string) {
	for _, w := range p.Warnings {
		a.warn(fmt.Sprintf("%s:%d:%d: %s", file, w.Line, w.Column, w.Text))
	}
}

// completeUsers completes the names of users that this machine lists.
func completeUsers(_ *cobra.Command, args []string, prefix string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	text, _ := os.ReadFile("/etc/passwd") // users of a directory service are not listed
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, ":"); strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// checkedPolicy returns the policy to put in force, from a file that only root can write, and the
// UIDs of the given users.
func checkedPolicy(users []string) (p *policy.Policy, more []int, err error) {
	if more, err = lookUpUsers(users); err != nil {
		return nil, nil, err
	}
	if p, err = policy.Check(policy.ConfigFile); err != nil {
		return nil, nil, err
	}
	return p, more, policy.Trusted(policy.ConfigFile)
}

// lookUpUsers returns the UIDs of users that are given as names or numbers (proc.UID).
func lookUpUsers(names []string) (uids []int, err error) {
	for _, name := range names {
		uid, err := proc.UID(name)
		if errors.Is(err, proc.ErrNoUser) {
			return nil, usageError("%s: no such user", name)
		}
		if err != nil {
			return nil, err
		}
		uids = append(uids, uid)
	}
	return uids, nil
}

func newPolicyEnableCommand(a *app) *cobra.Command {
	dry := false
	cmd := &cobra.Command{
		Use:   "enable [USER...]",
		Short: "Put the policy in force",
		Long: `Put ` + policy.ConfigFile + ` in force: make the jobs of the users that
it names, and of those given here; tell the dynamic linker, by
/etc/ld.so.preload, to load the library into every program, after trying that;
and start ` + policyService + `, which makes the jobs of other users when
they first need one. Programs that run already are not rationed.

A file that is wrong is refused as a whole.

Exit status: 0 if all is in force; 1 if a user's job could not be made, or
anything else failed; 2 if the file is wrong.`,
		Example: "  ration policy enable\n  ration policy enable --dry-run",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: func(_ *cobra.Command, args []string) error {
			p, more, err := checkedPolicy(args)
			if err != nil {
				return err
			}
			a.warnPolicy(p, policy.ConfigFile)
			if !dry && os.Geteuid() != 0 {
				return policy.ErrNotRoot // before it says what it does
			}
			steps, would := enableSteps(p), ""
			if dry {
				would = "would: "
			}
			for _, step := range steps {
				if !a.json {
					a.out.printf("%s%s\n", would, step)
				}
			}
			if dry {
				return a.print(PolicyPlanned{steps}, func() {})
			}
			out, err := p.Enable(more, a.warn)
			if err != nil {
				return err
			}
			a.startKeeper()
			return a.printApplied(out)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	return cmd
}

// PolicyPlanned is what `ration policy enable --dry-run --json` prints.
type PolicyPlanned struct {
	Would []string `json:"would"` // steps that it would take, in order
}

// enableSteps describes the changes to the machine when a policy is put in force.
func enableSteps(p *policy.Policy) []string {
	missing := "refused CUDA"
	if p.Missing == policy.MissingOpen {
		missing = "not limited"
	}
	return []string{
		"install " + policy.Library + ", and try it in a program",
		fmt.Sprintf("make the jobs of %s; those of others are made when they first need one", humanfmt.Plural(len(p.Users), "user", "users")),
		"write " + policy.InForceFile + "; a user for whom no job can be made is " + missing,
		"add the library to /etc/ld.so.preload, and leave all else there as it is",
		"start " + policyService + " where there is systemd",
	}
}

// startKeeper starts the service, if it is installed.
func (a *app) startKeeper() {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		out, err := exec.Command("systemctl", "enable", "--now", policyService).CombinedOutput()
		if err == nil {
			return
		}
		a.warn(fmt.Sprintf("%s could not be started: %s", policyService, strings.TrimSpace(string(out))))
	}
	a.warn("ration policy keep must run, to make jobs for users that the policy does not name (start it as root, at every boot)")
}

// PolicyApplied is what `ration policy enable --json` and `apply --json` print.
type PolicyApplied struct {
	Users  []string       `json:"users"` // users for which the policy is in force
	Later  []PolicyLater  `json:"later"` // what of it they get later
	Failed []PolicyFailed `json:"failed"`
}

// PolicyLater is a user whose job moves to other GPUs later.
type PolicyLater struct {
	User string `json:"user"`
	Text string `json:"text"`
}

// PolicyFailed is a user for which the policy is not in force.
type PolicyFailed struct {
	User  string `json:"user"`
	Error string `json:"error"`
}

func (a *app) printApplied(r policy.Result) error {
	out := PolicyApplied{Users: userNames(r.Users), Later: []PolicyLater{}, Failed: []PolicyFailed{}}
	for _, later := range r.Later {
		out.Later = append(out.Later, PolicyLater{proc.UserName(later.UID), later.Text})
	}
	for _, f := range r.Failed {
		out.Failed = append(out.Failed, PolicyFailed{proc.UserName(f.UID), f.Text()})
	}
	return a.printReport(out, len(out.Failed) == 0, func() {
		for _, f := range out.Failed {
			a.warn(fmt.Sprintf("user %s: %s", f.User, f.Error))
		}
		for _, later := range out.Later {
			a.warn(fmt.Sprintf("user %s %s", later.User, later.Text))
		}
		text := humanfmt.Plural(len(out.Users), "user has a job or is exempt", "users have a job or are exempt")
		if len(out.Failed) > 0 { // most of them have the job of before
			text = humanfmt.Plural(len(out.Users)-len(out.Later), "user has what the rule says", "users have what their rules say") + ", " +
				humanfmt.Plural(len(out.Failed)+len(out.Later), "does not", "do not")
		}
		a.out.printf("The policy is in force. %s.\n", text)
		if up := job.PolicyUp(); up != nil && !*up {
			a.out.paragraph(bold, 0, "%s", serviceDown)
		}
	})
}

func userNames(uids []int) []string {
	names := make([]string, len(uids))
	for i, uid := range uids {
		names[i] = proc.UserName(uid)
	}
	return names
}

func newPolicyApplyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "apply [USER...]",
		Short: "Put a changed policy in force",
		Long: `Put ` + policy.ConfigFile + `, which has changed, in force, in place of
the current policy. Limits of running jobs change at once; programs keep what
they hold beyond a new limit. A file with an error is refused as a whole, and
the current policy stays. ` + policyService + ` does the same when the file
changes.

Jobs of the users given here are made as well.

Exit status: as for ration policy enable.`,
		Example: "  ration policy apply\n  ration policy apply anna",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: func(_ *cobra.Command, args []string) error {
			p, more, err := checkedPolicy(args)
			if err != nil {
				return err
			}
			a.warnPolicy(p, policy.ConfigFile)
			out, err := p.Apply(more, a.warn)
			if err != nil {
				return err
			}
			return a.printApplied(out)
		},
	}
}

// PolicyEnded is what `ration policy disable --json` prints.
type PolicyEnded struct {
	WasInForce bool     `json:"was_in_force"`
	Left       []string `json:"left"` // jobs and runs that have processes, which stay in them
}

func newPolicyDisableCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "disable",
		Short: "End the policy",
		Long: `End the policy. The library's line is taken out of /etc/ld.so.preload, and all
else in it stays; then the library and everything that was made for it is
removed. Running programs stay in their jobs, with their limits, until they
end; jobs that sleep_after has put to sleep are woken. Programs that start later
are in no job.

Exit status: 0 if no policy is in force any more, also where none was.`,
		Example: "  ration policy disable",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, before := policy.InForce()
			left, err := policy.Disable()
			if err != nil {
				return err
			}
			if _, err := os.Stat("/run/systemd/system"); err == nil {
				_ = exec.Command("systemctl", "disable", "--now", policyService).Run()
			}
			out := PolicyEnded{WasInForce: !errors.Is(before, policy.ErrDisabled), Left: []string{}}
			for _, j := range left {
				out.Left = append(out.Left, job.ShownName(j.Name, j.Path))
			}
			err = a.print(out, func() {
				if out.WasInForce {
					a.out.printf("The policy has ended: programs that start now are not rationed.\n")
				} else {
					a.out.printf("No policy was in force.\n")
				}
				for _, name := range out.Left {
					a.out.printf("Job %s is left: its processes stay in it until they end.\n", name)
				}
			})
			a.wakeLeft(left)
			return err
		},
	}
}

func newPolicyKeepCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "keep",
		Short: "Run the service that makes jobs for users when they first need one",
		Long: `Keep the policy that is in force, until it is ended by SIGTERM, or the policy
is disabled: make a job for a user when a program first needs one, give ration
run --mem its part of the user's ration, and put
` + policy.ConfigFile + ` in force when it changes. ` + policyService + `
runs it. Existing jobs do not need it.

The log goes to standard error.

Exit status: 0 when it was asked to end, or the policy was disabled; 1 if it
could not begin.`,
		Example: "  ration policy keep",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := untilSignal()
			defer stop()
			log := newLog(a.err.Writer, false)
			return policy.Keep(ctx, log, func() {
				log.Info("keeping the policy", "version", version)
				agent.Notify("READY=1")
			})
		},
	}
}
