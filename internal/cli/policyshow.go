package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/limit"
	"ration/internal/policy"
)

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
		a.out.printf("The policy names no user, and nobody has a job yet: each gets one by the first CUDA program (ration policy show USER says which).\n")
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
