package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/region"
	"ration/internal/termtext"
)

// PolicyShown is what `ration policy show --json` prints.
type PolicyShown struct {
	InForce  bool              `json:"in_force"`
	Overbook bool              `json:"overbook"`
	Missing  string            `json:"missing"`
	Preload  bool              `json:"preload"` // programs load the library
	Rules    []policy.RuleText `json:"rules"`   // in the order in which they apply
	Users    []policy.Standing `json:"users"`
}

func newPolicyShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show [USER...]",
		Short: "Show the policy in force, and the rations of users",
		Long: `Show the policy in force: the rules of users, of groups and for everybody, in
the order in which they apply; and for each user the rule that applies, the
ration, and the limits of the user's job. Without arguments these are the users
that the policy names, and those that have a job. With arguments only those
users are shown; --json always has the rules.

Exit status: 0, or 1 if no policy is in force.`,
		Example: "  ration policy show\n  ration policy show anna --json",
		Args:    argCount(0, -1, "users"),

		ValidArgsFunction: completeUsers,
		RunE: func(_ *cobra.Command, args []string) error {
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
			out := PolicyShown{true, p.Overbook, p.Missing, policy.Preloaded(), p.Rules(), []policy.Standing{}}
			for _, uid := range uids {
				out.Users = append(out.Users, p.Show(uid))
			}
			return a.print(out, func() { a.printPolicy(out, len(args) == 0) })
		},
	}
}

// printPolicy prints the policy in force, with all rules or only for some users.
func (a *app) printPolicy(s PolicyShown, rules bool) {
	overbook, missing := "Rations fit on the devices", "is refused CUDA"
	if s.Overbook {
		overbook = "Rations may come to more than the devices have"
	}
	if s.Missing == policy.MissingOpen {
		missing = "is not limited"
	}
	a.out.paragraph(plain, 0, "%s. A user for whom no job can be made %s.", overbook, missing)
	if !s.Preload {
		a.out.paragraph(plain, 0, "No program is rationed: /etc/ld.so.preload does not name %s (ration policy enable puts it there).", policy.Library)
	}
	if rules {
		a.out.printf("\n")
		printTable(a.out, append([]column[policy.RuleText]{{title: "RULE", text: func(r policy.RuleText) string { return r.Rule }}},
			rationColumns(func(r policy.RuleText) (bool, limit.Limits, limit.Limits) {
				return r.Exempt, r.Ration, r.Largest
			})...), s.Rules)
	}
	a.out.printf("\n")
	if len(s.Users) == 0 {
		a.out.paragraph(plain, 0, "The policy names no user, and nobody has a job yet: each gets one by the first CUDA program (ration policy show USER says which).")
		return
	}
	columns := []column[policy.Standing]{
		{title: "USER", text: func(u policy.Standing) string { return u.User }},
		{title: "RULE", text: func(u policy.Standing) string { return cmp.Or(u.Rule, "unknown") }},
	}
	columns = append(columns, rationColumns(func(u policy.Standing) (bool, limit.Limits, limit.Limits) {
		return u.Exempt, u.Ration, u.Largest
	})...)
	printTable(a.out, append(columns, column[policy.Standing]{title: "ASKED",
		text: func(u policy.Standing) string {
			if u.Asked == nil {
				return "-"
			}
			return differing(u.Ration, *u.Asked)
		},
		needed: func(u policy.Standing) bool { return u.Asked != nil && *u.Asked != u.Ration }},
		column[policy.Standing]{title: "GPU",
			text:   func(u policy.Standing) string { return cmp.Or(strings.TrimLeft(gpusText(u.GPUs), "GPUs "), "-") },
			needed: func(u policy.Standing) bool { return len(u.GPUs) > 0 }},
		column[policy.Standing]{title: "JOB", text: func(u policy.Standing) string {
			if u.Job == "" && u.Exempt {
				return "-"
			}
			if u.Job == "" {
				return "none yet"
			}
			return limitsText(u.Limits)
		}}), s.Users)
	for _, u := range s.Users {
		if u.Error != "" {
			a.out.printf("%s %s\n", a.out.style(bold, "!"), a.out.wrap(termtext.Printable(u.User+": "+u.Error), 2))
		}
	}
}

// rationColumns are the columns of a ration, and of the largest one that its users may ask for.
func rationColumns[T any](of func(T) (exempt bool, ration, largest limit.Limits)) []column[T] {
	part := func(title string, get func(limit.Limits) fmt.Stringer) column[T] {
		return column[T]{title: title, text: func(r T) string {
			exempt, ration, _ := of(r)
			if exempt && title == "MEMORY" {
				return "exempt"
			}
			return partText(get(ration))
		}}
	}
	optional := func(title string, get func(limit.Limits) fmt.Stringer, isSet func(limit.Limits) bool) column[T] {
		c := part(title, get)
		c.needed = func(r T) bool {
			_, ration, _ := of(r)
			return isSet(ration)
		}
		return c
	}
	return []column[T]{
		part("MEMORY", func(r limit.Limits) fmt.Stringer { return r.Memory }),
		part("SHARE", func(r limit.Limits) fmt.Stringer { return r.Compute }),
		part("CAP", func(r limit.Limits) fmt.Stringer { return r.ComputeMax }),
		optional("GPUS", func(r limit.Limits) fmt.Stringer { return r.Devices }, func(r limit.Limits) bool { return r.Devices.IsSet() }),
		optional("PRIORITY", func(r limit.Limits) fmt.Stringer { return r.Priority }, func(r limit.Limits) bool { return r.Priority != 0 }),
		{title: "LARGEST",
			text: func(r T) string {
				_, ration, most := of(r)
				return differing(ration, most)
			},
			needed: func(r T) bool {
				_, ration, most := of(r)
				return ration != most
			}},
	}
}

// differing formats the parts of another ration, the largest one or one that was asked for, that are not the ration's.
func differing(ration, other limit.Limits) string {
	var parts []string
	if ration.Memory != other.Memory {
		parts = append(parts, other.Memory.String())
	}
	if ration.Compute != other.Compute {
		parts = append(parts, "share "+other.Compute.String())
	}
	if ration.ComputeMax != other.ComputeMax {
		parts = append(parts, "cap "+other.ComputeMax.String())
	}
	if ration.Priority != other.Priority {
		parts = append(parts, other.Priority.String()+" priority")
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// partText formats a part of a ration as in the file.
func partText(part fmt.Stringer) string {
	if text := part.String(); text != "unset" {
		return text
	}
	return "-"
}

// limitsText formats the memory limits of a job: one size if all devices have the same.
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

// memoryText formats a limit as the file does, or with a fraction if it is not whole MiB, such as that of a percentage.
func memoryText(bytes uint64) string {
	if bytes == 0 {
		return "none"
	}
	if size := limit.Size(bytes); size%limit.MiB == 0 {
		return size.Exact()
	}
	return limit.Size(bytes).String()
}

func newPolicyAskCommand(a *app) *cobra.Command {
	var f limitFlags
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Ask for another ration, up to the largest that you may have",
		Long: `Ask for another ration for all your programs, up to the largest that the policy
allows you (ration policy show). It applies at once, until you ask again, the
policy changes so that it is too much, or the machine boots. Limits that you do
not give are those of the policy. --priority says which jobs come first on a GPU,
as in ration run, up to the highest that the policy allows you.

Exit status: 0 if you have it; 1 if it is too much, or does not fit beside the
rations of others.`,
		Example: "  ration policy ask --mem 30g\n  ration policy ask --priority low",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.parse(cmd.Flags())
			if err != nil {
				return err
			}
			if err := policy.Ask(r); err != nil {
				return err
			}
			a.out.printf("You have it.\n")
			return nil
		},
	}
	f.addMemory(cmd.Flags())
	f.addCompute(cmd.Flags())
	f.addPriority(cmd.Flags())
	return cmd
}

func newPolicyMoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "move [GPU]",
		Short: "Move your ration to another GPU",
		Long: `Move your ration to another GPU of a machine with several: to GPU, a number that
ration ps shows (0,2 if your ration is on two), or else to the other GPU with
most memory in no ration. End your programs first: a program stays on the GPU
that it began with. While you run nothing, others may get the memory; then your
next program is given a GPU as usual.

Exit status: 0 if your ration is there; 1 if a program of yours runs, or there
is no room.`,
		Example: "  ration policy move\n  ration policy move 1",
		Args:    argCount(0, 1, "a GPU"),

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				if _, err := region.ParsePlace(args[0]); err != nil {
					return usageError("%w", err)
				}
			}
			at, err := policy.Move(strings.Join(args, ""))
			if err != nil {
				return err
			}
			a.out.printf("Your ration is on %v.\n", at)
			return nil
		},
	}
}
