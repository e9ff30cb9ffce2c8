package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/embedded"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/proc"
)

// policyService is the unit that keeps a policy.
const policyService = "ration-policy.service"

func newPolicyCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Give every user of the machine a ration, whatever they start",
		Long: `Give every user of this machine a ration of its GPUs, by a file of the
operator's, ` + policy.ConfigFile + `. Every CUDA program of a user is then in
that user's job, without anybody typing ration: after SSH, su, cron, and env -i.
Only root can change the limits.

  overbook = false             # may rations come to more than a device has?
  missing = "closed"           # without a job CUDA is refused; "open": not limited

  [everybody]                  # whom nothing else names
  memory = "8g"

  [groups.students]            # of several groups the first one counts
  memory = "4g"
  compute_max = "50%"

  [users.anna]
  memory = "20g"
  compute = "30%"
  largest = { memory = "40g" } # anna may ask for more, up to this

Limits are written as for ration run. A rule with exempt = true leaves its users
out. Root is never rationed.`,
		Example: "  ration policy check\n  ration policy enable\n  ration policy show anna",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyCheckCommand(a), newPolicyEnableCommand(a), newPolicyApplyCommand(a), newPolicyDisableCommand(a), newPolicyShowCommand(a),
		newPolicyAskCommand(a), newPolicyKeepCommand(a))
	return cmd
}

// policyStatus gives errors of a policy their exit status: 2 for a file that is wrong.
func policyStatus(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return withStatus(func(cmd *cobra.Command, args []string) error {
		// The library looks in root's own folder, whatever the environment says.
		_ = os.Unsetenv(job.EnvFolder)
		_ = os.Unsetenv(embedded.EnvFolder)
		err := f(cmd, args)
		var wrong *policy.ConfigError
		switch {
		case errors.As(err, &wrong):
			return statusError{err, ExitUsage}
		case errors.Is(err, policy.ErrNotRoot):
			return fmt.Errorf("%s: %w (sudo %s)", cmd.CommandPath(), err, cmd.CommandPath())
		}
		return err
	})
}

func (a *app) warn(text string) { printError(a.err, errors.New(text)) }

// PolicyChecked is what `ration policy check --json` prints.
type PolicyChecked struct {
	File     string          `json:"file"`
	Right    bool            `json:"right"`
	Problems []PolicyProblem `json:"problems"`
}

// PolicyProblem is something wrong in the file.
type PolicyProblem struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"`
}

func newPolicyCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a policy, and change nothing",
		Long: `Check a file, by default ` + policy.ConfigFile + `, as a whole: its form, its
limits, the users and groups, and whether the rations of users whom it names fit
on the devices of this machine. Each problem is printed as FILE:LINE:COLUMN.

Exit status: 0 if it is right, 2 if not.`,
		Example: "  ration policy check\n  ration policy check new.toml",
		Args:    argCount(0, 1, "one file"),
		RunE: policyStatus(func(_ *cobra.Command, args []string) error {
			file := policy.ConfigFile
			if len(args) > 0 {
				file = args[0]
			}
			p, err := policy.Check(file)
			var wrong *policy.ConfigError
			if a.json && (err == nil || errors.As(err, &wrong)) {
				out := PolicyChecked{File: file, Right: err == nil, Problems: []PolicyProblem{}}
				if wrong != nil {
					for _, problem := range wrong.Problems {
						out.Problems = append(out.Problems, PolicyProblem(problem))
					}
				}
				if e := a.out.printJSON(out); e != nil || err == nil {
					return e
				}
				return statusError{errReported, ExitUsage}
			}
			if err != nil {
				return err
			}
			a.out.printf("%s is right: %s, %s, and a rule for everybody else.\n", file,
				humanfmt.Plural(len(p.Users), "user", "users"), humanfmt.Plural(len(p.Groups), "group", "groups"))
			return nil
		}),
	}
}

// completeUsers completes the names of users that this machine lists.
func completeUsers(_ *cobra.Command, args []string, prefix string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	text, _ := os.ReadFile("/etc/passwd") // those of a directory service are not listed
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, ":"); strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// lookUpUsers returns the users of that name, or number.
func lookUpUsers(names []string) (uids []int, err error) {
	for _, name := range names {
		uid, err := policy.LookupUser(name)
		if err != nil {
			return nil, usageError("%s: no such user", name)
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
		Long: `Put ` + policy.ConfigFile + ` in force: make the jobs of the users
whom it names, and of those given here; tell the dynamic linker, by
/etc/ld.so.preload, to load the library into every program, after trying that;
and start ` + policyService + `, which makes the jobs of other users when
they first need one. Programs that run already are not rationed.

A file that is wrong is refused as a whole.

Exit status: 0 if all is in force; 1 if a user's job could not be made, or
anything else failed; 2 if the file is wrong.`,
		Example: "  ration policy enable\n  ration policy enable --dry-run",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: policyStatus(func(_ *cobra.Command, args []string) error {
			more, err := lookUpUsers(args)
			if err != nil {
				return err
			}
			p, err := policy.Check(policy.ConfigFile)
			if err == nil {
				err = policy.Trusted(policy.ConfigFile)
			}
			if err != nil {
				return err
			}
			a.sayWhatEnableDoes(p, dry)
			if dry {
				return nil
			}
			out, err := p.Enable(more, a.warn)
			if err == nil {
				a.startKeeper()
			}
			return a.printApplied(out, err, "in force")
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	return cmd
}

func (a *app) sayWhatEnableDoes(p *policy.Policy, dry bool) {
	if a.json {
		return
	}
	would := ""
	if dry {
		would = "would: "
	}
	missing := "refused CUDA"
	if p.Missing == policy.MissingOpen {
		missing = "not limited"
	}
	for _, line := range []string{
		"install " + policy.Library + ", and try it in a program",
		fmt.Sprintf("make the jobs of %s; those of others are made when they first need one", humanfmt.Plural(len(p.Users), "user", "users")),
		"write " + policy.InForceFile + "; a user for whom no job can be made is " + missing,
		"add the library to /etc/ld.so.preload, and leave all else there as it is",
		"start " + policyService + " where there is systemd",
	} {
		a.out.printf("%s%s\n", would, line)
	}
}

// startKeeper starts the service, where there is one.
func (a *app) startKeeper() {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		out, err := exec.Command("systemctl", "enable", "--now", policyService).CombinedOutput()
		if err == nil {
			return
		}
		a.warn(fmt.Sprintf("%s could not be started: %s", policyService, strings.TrimSpace(string(out))))
	}
	a.warn("jobs of users whom the policy does not name are made by ration policy keep, which must run (started by root, at every boot)")
}

// PolicyApplied is what `ration policy enable --json` and `apply --json` print.
type PolicyApplied struct {
	Users  []string       `json:"users"` // who have what the policy says
	Failed []PolicyFailed `json:"failed"`
}

// PolicyFailed is a user for whom it could not be done.
type PolicyFailed struct {
	User  string `json:"user"`
	Error string `json:"error"`
}

func (a *app) printApplied(r policy.Result, err error, what string) error {
	if err != nil {
		return err
	}
	out := PolicyApplied{Users: []string{}, Failed: []PolicyFailed{}}
	for _, uid := range r.Users {
		out.Users = append(out.Users, proc.UserName(uid))
	}
	for _, f := range r.Failed {
		out.Failed = append(out.Failed, PolicyFailed{proc.UserName(f.UID), f.Err.Error()})
	}
	if a.json {
		if err := a.out.printJSON(out); err != nil {
			return err
		}
	} else {
		for _, f := range out.Failed {
			a.warn(fmt.Sprintf("user %s: %s", f.User, f.Error))
		}
		a.out.printf("The policy is %s. %s.\n", what, humanfmt.Plural(len(out.Users), "user has a job or is exempt", "users have a job or are exempt"))
	}
	if len(out.Failed) > 0 {
		return errFailed
	}
	return nil
}

func newPolicyApplyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "apply [USER...]",
		Short: "Put a changed policy in force",
		Long: `Put ` + policy.ConfigFile + `, which has changed, in the place of the policy
that is in force. Limits of jobs that run change at once; what they hold beyond
stays held. A file that is wrong is refused as a whole, and what is in force
stays. ` + policyService + ` does the same when the file changes.

Jobs of the users given here are made as well.

Exit status: as for ration policy enable.`,
		Example: "  ration policy apply\n  ration policy apply anna",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: policyStatus(func(_ *cobra.Command, args []string) error {
			more, err := lookUpUsers(args)
			if err != nil {
				return err
			}
			p, err := policy.Check(policy.ConfigFile)
			if err == nil {
				err = policy.Trusted(policy.ConfigFile)
			}
			if err != nil {
				return err
			}
			out, err := p.Apply(more, a.warn)
			return a.printApplied(out, err, "in force")
		}),
	}
}

func newPolicyDisableCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "disable",
		Short: "End the policy",
		Long: `End the policy. The library's line is taken out of /etc/ld.so.preload, and all
else in it stays; then the library goes. Programs that run stay in their jobs,
with their limits, until they end. Those that start are in none.

Exit status: 0 if no policy is in force any more, also where none was.`,
		Example: "  ration policy disable",
		Args:    noArgs,
		RunE: policyStatus(func(_ *cobra.Command, _ []string) error {
			left, err := policy.Disable()
			if err != nil {
				return err
			}
			if _, err := os.Stat("/run/systemd/system"); err == nil {
				_ = exec.Command("systemctl", "disable", "--now", policyService).Run()
			}
			a.out.printf("No policy is in force.\n")
			for _, uid := range left {
				a.out.printf("The job of %s is left: its processes stay in it until they end.\n", proc.UserName(uid))
			}
			return nil
		}),
	}
}

// PolicyShown is what `ration policy show --json` prints.
type PolicyShown struct {
	InForce  bool              `json:"in_force"`
	Overbook bool              `json:"overbook"`
	Missing  string            `json:"missing"`
	Preload  bool              `json:"preload"` // programs load the library
	Users    []policy.Standing `json:"users"`
}

func newPolicyShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show [USER...]",
		Short: "Show what is in force, and for whom",
		Long: `Show what is in force for users: the rule that counts, the ration, and what
their jobs have. Without arguments it shows the users whom the policy names, and
those who have a job.

Exit status: 0, or 1 if no policy is in force.`,
		Example: "  ration policy show\n  ration policy show anna --json",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: policyStatus(func(_ *cobra.Command, args []string) error {
			uids, err := lookUpUsers(args)
			if err != nil {
				return err
			}
			p, err := policy.InForce()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				uids = p.Named()
			}
			out := PolicyShown{true, p.Overbook, p.Missing, policy.Preloaded(), []policy.Standing{}}
			for _, uid := range uids {
				out.Users = append(out.Users, p.Show(uid))
			}
			if a.json {
				return a.out.printJSON(out)
			}
			a.printPolicy(out)
			return nil
		}),
	}
}

func (a *app) printPolicy(s PolicyShown) {
	overbook, missing := "Rations fit on the devices", "is refused CUDA"
	if s.Overbook {
		overbook = "Rations may come to more than the devices have"
	}
	if s.Missing == policy.MissingOpen {
		missing = "is not limited"
	}
	a.out.printf("%s. A user for whom no job can be made %s.\n", overbook, missing)
	if !s.Preload {
		a.out.printf("No program is rationed: /etc/ld.so.preload does not name %s (ration policy enable puts it there).\n", policy.Library)
	}
	value := func(text string) string {
		if text == "unset" {
			return "-"
		}
		return text
	}
	if len(s.Users) == 0 {
		return
	}
	printTable(a.out, []column[policy.Standing]{
		{title: "USER", text: func(u policy.Standing) string { return u.User }},
		{title: "RULE", text: func(u policy.Standing) string { return u.Rule }},
		{title: "MEMORY", text: func(u policy.Standing) string {
			if u.Exempt {
				return "exempt"
			}
			return value(u.Ration.Memory)
		}},
		{title: "SHARE", text: func(u policy.Standing) string { return value(u.Ration.Compute) }},
		{title: "CAP", text: func(u policy.Standing) string { return value(u.Ration.ComputeMax) }},
		{title: "LARGEST", text: func(u policy.Standing) string { return value(u.Largest.Memory) },
			needed: func(u policy.Standing) bool { return u.Largest != u.Ration }},
		{title: "ASKED", text: func(u policy.Standing) string { return value(u.Asked.Memory) },
			needed: func(u policy.Standing) bool { return u.Asked != nil }},
		{title: "JOB", text: func(u policy.Standing) string {
			if u.Job == "" {
				return "none yet"
			}
			return limitsText(u.Limits)
		}},
	}, s.Users)
}

// limitsText renders the memory limits that a job has: one, where all devices have the same.
func limitsText(limits []policy.DeviceLimit) string {
	if len(limits) == 0 {
		return "no limit"
	}
	var parts []string
	for _, l := range limits {
		if l.Memory != limits[0].Memory || len(limits) == 1 {
			parts = append(parts, fmt.Sprintf("%d=%s", l.Device, memoryText(l.Memory)))
		}
	}
	if len(parts) == 0 || len(limits) == 1 {
		return memoryText(limits[0].Memory)
	}
	return fmt.Sprintf("%d=%s,", limits[0].Device, memoryText(limits[0].Memory)) + strings.Join(parts, ",")
}

func memoryText(bytes uint64) string {
	if bytes == 0 {
		return "none"
	}
	return limit.Size(bytes).String()
}

func newPolicyAskCommand(a *app) *cobra.Command {
	mem, compute := "", computeFlags{}
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Ask for another ration, up to the largest that you may have",
		Long: `Ask for another ration for all your programs, up to the largest that the
policy allows you (ration policy show). It counts at once, and until you ask
again, the file changes so that it is too much, or the machine is booted. What is
not given is as the policy has it.

Exit status: 0 if you have it; 1 if it is too much, or does not fit beside the
rations of others.`,
		Example: "  ration policy ask --mem 30g",
		Args:    noArgs,
		RunE: policyStatus(func(cmd *cobra.Command, _ []string) error {
			var r policy.Ration
			var err error
			if cmd.Flags().Changed("mem") {
				if r.Memory, err = limit.ParseMemorySet("--mem", mem); err != nil {
					return err
				}
			}
			if r.Compute, r.ComputeMax, err = compute.parse(cmd); err != nil {
				return err
			}
			if err := policy.Ask(r); err != nil {
				return err
			}
			a.out.printf("You have it.\n")
			return nil
		}),
	}
	cmd.Flags().StringVar(&mem, "mem", "", "`limits` on GPU memory: 10g, 25%, 0=10g,1=20g")
	compute.add(cmd.Flags())
	return cmd
}

func newPolicyKeepCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "keep",
		Short: "Make the jobs of users when they first need one, until it is ended",
		Long: `Keep the policy that is in force, until it is ended by SIGTERM, or the policy
is disabled: make the job of a user whose program first needs one, and put
` + policy.ConfigFile + ` in force when it changes. ` + policyService + `
runs it. Jobs that are there do not need it.

The log goes to standard error.

Exit status: 0 when it was asked to end, or the policy was disabled; 1 if it
could not begin.`,
		Example: "  ration policy keep",
		Args:    noArgs,
		RunE: policyStatus(func(_ *cobra.Command, _ []string) error {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			end := func() { stop() }
			onSignal.Store(&end)
			defer onSignal.Store(nil)
			log := slog.New(slog.NewTextHandler(a.err.Writer, nil))
			return policy.Keep(ctx, log, func() {
				log.Info("keeping the policy", "version", version)
				agent.Notify("READY=1")
			})
		}),
	}
}
