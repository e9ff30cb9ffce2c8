package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/policy"
	"ration/internal/region"
	"ration/internal/termtext"
)

// PolicyShown is what `ration policy show --json` prints.
type PolicyShown struct {
	InForce  bool              `json:"in_force"`
	Changed  bool              `json:"changed"` // the file of the policy is another by now, and not in force
	Overbook bool              `json:"overbook"`
	Missing  string            `json:"missing"`
	Memory   string            `json:"sleep_memory,omitempty"` // host memory that the sleeping jobs of a user may take together
	Preload  bool              `json:"preload"`                // programs load the library
	Up       *bool             `json:"service_up,omitempty"`   // the policy's service answers
	Rules    []policy.RuleText `json:"rules"`                  // in the order in which they apply
	Users    []policy.Standing `json:"users"`
}

// serviceDown says that the policy's service does not run.
const serviceDown = "The service of this machine's policy does not run: users without a job get none (root starts it: systemctl start ration-policy, or ration policy keep)."

func newPolicyShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show [USER...]",
		Short: "Show the policy in force, and the rations of users",
		Long: `Show the policy in force: the rules of users, of groups and for everybody, in
the order in which they apply, with all that they set; and for each user the
rule that applies, the ration, and the limits of the user's job. Without
arguments these are the users that the policy names, those that have a job, and
yourself.
With arguments only those users are shown; --json always has the rules.

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
				if own := os.Getuid(); own != 0 && !slices.Contains(uids, own) { // a user asks about their own ration first
					uids = append(uids, own)
				}
			}
			text, err := os.ReadFile(policy.ConfigFile)
			out := PolicyShown{true, err == nil && !p.IsOf(text), p.Overbook, p.Missing, p.Memory, policy.Preloaded(), job.PolicyUp(), p.Rules(), []policy.Standing{}}
			for _, u := range p.Show(uids...) {
				uid := u.UID
				if u.Job == "" && u.Rule != "" && !u.Exempt && uid == os.Getuid() && uid != 0 {
					if room, err := policy.Room(); err == nil { // otherwise it is not known
						u.Room = &room
					}
					u.GPUCount = p.OnDevices(uid)
				}
				out.Users = append(out.Users, u)
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
	if s.Memory != "" {
		a.out.paragraph(plain, 0, "The sleeping jobs of a user may take %s of host memory together.", s.Memory)
	}
	if s.Changed {
		a.out.paragraph(bold, 0, "%s has changed since, and is not in force (ration policy check says what is wrong with it; ration policy apply puts it in force).", policy.ConfigFile)
	}
	if s.Up != nil && !*s.Up {
		a.out.paragraph(bold, 0, "%s", serviceDown)
	}
	_, kept, inKept := job.Enclosing()
	switch {
	case inKept:
		a.out.paragraph(plain, 0, "All programs here are in %s (ration run --keep): its limit counts, and no ration does. The jobs of the policy cannot be seen from here.", kept)
	case !s.Preload:
		a.out.paragraph(plain, 0, "No program is rationed: /etc/ld.so.preload does not name %s (ration policy enable puts it there).", policy.Library)
	}
	if rules {
		a.out.printf("\n")
		printTable(a.out, append([]column[policy.RuleText]{{title: "RULE", text: func(r policy.RuleText) string { return r.Rule }}},
			termColumns(func(r policy.RuleText) policy.Terms { return r.Terms })...), s.Rules)
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
	// A narrow terminal cuts the last columns: those of the rule, which the first table has too.
	const ration = 3 // MEMORY, SHARE and CAP
	terms := termColumns(func(u policy.Standing) policy.Terms { return u.Terms })
	columns = append(columns, terms[:ration]...)
	columns = append(columns, column[policy.Standing]{title: "ASKED",
		text: func(u policy.Standing) string {
			if u.Asked == nil {
				return "-"
			}
			return differing(u.Ration, *u.Asked)
		},
		needed: func(u policy.Standing) bool { return u.Asked != nil && *u.Asked != u.Ration }},
		column[policy.Standing]{title: "GPU",
			text:   placeText,
			needed: func(u policy.Standing) bool { return len(u.GPUs) > 0 }},
		column[policy.Standing]{title: "JOB", text: func(u policy.Standing) string {
			if u.Exempt {
				return "-"
			}
			if inKept {
				return "not seen from here"
			}
			if u.Job == "" && u.Room != nil && len(*u.Room) == 0 {
				return "none yet, no room now"
			}
			if u.Job == "" {
				return "none yet"
			}
			if u.RationLent {
				return "lent"
			}
			return limitsText(u)
		}})
	printTable(a.out, append(columns, terms[ration:]...), s.Users)
	for _, u := range s.Users {
		if text := u.LaterText(); text != "" {
			a.out.printf("%s\n", a.out.wrap(termtext.Printable(u.User+" "+text), 2))
		}
		if u.Error != "" {
			a.out.printf("%s %s\n", a.out.style(bold, "!"), a.out.wrap(termtext.Printable(u.User+": "+u.Error), 2))
		}
	}
}

// termColumns are the columns of what a rule says.
func termColumns[T any](of func(T) policy.Terms) []column[T] {
	part := func(title string, get func(policy.Terms) string) column[T] {
		return column[T]{title: title, text: func(r T) string { return cmp.Or(get(of(r)), "-") }}
	}
	optional := func(title string, get func(policy.Terms) string, isSet func(policy.Terms) bool) column[T] {
		c := part(title, get)
		c.needed = func(r T) bool { return isSet(of(r)) }
		return c
	}
	return []column[T]{
		part("MEMORY", func(t policy.Terms) string {
			if t.Exempt {
				return "exempt"
			}
			return partText(t.Ration.Memory)
		}),
		part("SHARE", func(t policy.Terms) string { return partText(t.Ration.Compute) }),
		part("CAP", func(t policy.Terms) string { return partText(t.Ration.ComputeMax) }),
		optional("GPUS", func(t policy.Terms) string { return partText(t.Ration.Devices) }, func(t policy.Terms) bool { return t.Ration.Devices.IsSet() }),
		optional("PRIORITY", func(t policy.Terms) string { return partText(t.Ration.Priority) }, func(t policy.Terms) bool { return t.Ration.Priority != 0 }),
		optional("LARGEST", func(t policy.Terms) string { return differing(t.Ration, t.Largest) }, func(t policy.Terms) bool { return t.Ration != t.Largest }),
		optional("WHEN FULL", func(t policy.Terms) string { return t.WhenFull }, func(t policy.Terms) bool { return t.WhenFull == policy.WhenFullWait }),
		optional("SLEEPS AFTER", func(t policy.Terms) string { return t.SleepAfter }, func(t policy.Terms) bool { return t.SleepAfter != "" }),
		optional("PROJECTS", func(t policy.Terms) string { return strings.Join(t.Projects, ", ") }, func(t policy.Terms) bool { return len(t.Projects) > 0 }),
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

// placeText formats which GPUs a user's job is on.
func placeText(u policy.Standing) string {
	switch {
	case u.Job == "" || u.Exempt:
		return "-"
	case len(u.GPUs) > 0:
		return strings.TrimLeft(gpusText(u.GPUs), "GPUs ")
	case u.Has().Memory.OnlyNamed():
		var on []int
		for _, l := range namedOnly(u) {
			on = append(on, l.Device)
		}
		return strings.TrimLeft(gpusText(on), "GPUs ")
	}
	return "all"
}

// namedOnly returns the limits of a user's job on the devices that the ration names, if it names any: those on the others are
// 0, and only say that the user cannot use them.
func namedOnly(u policy.Standing) []policy.DeviceLimit {
	memory := u.Has().Memory
	return slices.DeleteFunc(slices.Clone(u.Limits), func(l policy.DeviceLimit) bool { return memory.OnlyNamed() && !memory.For(l.Device).IsSet() })
}

// limitsText formats the memory limits of a job: one size if all devices have the same.
func limitsText(u policy.Standing) string {
	limits := namedOnly(u)
	if len(limits) == 0 {
		return "no limit"
	}
	var each []string
	same := !u.Has().Memory.OnlyNamed()
	later := ""
	for _, l := range limits {
		each = append(each, fmt.Sprintf("%d=%s", l.Device, memoryText(l)))
		same = same && memoryText(l) == memoryText(limits[0])
		if l.Later > 0 {
			later = ", less than the ration now"
		}
	}
	if u.Runs > 0 {
		later = " beside " + humanfmt.Plural(u.Runs, "run", "runs")
	}
	if same {
		return memoryText(limits[0]) + later
	}
	return strings.Join(each, ",") + later
}

// memoryText formats a limit as the file does, or with a fraction if it is not whole MiB, such as that of a percentage. It is
// 0 if runs have the whole ration.
func memoryText(l policy.DeviceLimit) string {
	if !l.Limited {
		return "none"
	}
	return limit.Size(l.Memory).Words()
}

func newPolicyAskCommand(a *app) *cobra.Command {
	var f limitFlags
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Ask for another ration, up to the largest that you may have",
		Long: `Ask for another ration for all your programs, up to the largest that the policy
allows you (ration policy show). It applies at once, until you ask again,
another user gets your ration while no program of yours runs, or the machine
boots. While the policy allows you less than that, you have the policy's ration.
Only the limits that you give change; those that you never asked for are the
policy's, also when it changes. Without limits you get the policy's ration back.
--priority says which jobs come first on a GPU, as in ration run, up to the
highest that the policy allows you.

Exit status: 0 if you have it; 1 if it is too much, or does not fit beside the
rations of others.`,
		Example: "  ration policy ask --mem 30g\n  ration policy ask --priority low",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.parse(cmd.Flags())
			if err != nil {
				return err
			}
			for d := range limit.MaxDevices { // the service would name its own key for it
				size, _ := r.Memory.For(d).Of(0) // 0 for a percentage
				if err := limit.CheckLeast(size, "--mem", f.mem); err != nil {
					return err
				}
			}
			if err := policy.Ask(r); err != nil {
				return err
			}
			return a.printStanding(func(s policy.Standing) {
				a.out.printf("Your ration is %s.\n", s.Has().Words())
				if s.Moves {
					a.out.paragraph(plain, 2, "Your job %s.", s.LaterText())
				}
				a.noteHeld()
				a.noteTooSmall()
			})
		},
	}
	f.addMemory(cmd.Flags())
	f.addCompute(cmd.Flags())
	f.addPriority(cmd.Flags())
	return cmd
}

// printStanding prints this user's ration as JSON, or calls text.
func (a *app) printStanding(text func(policy.Standing)) error {
	p, err := policy.InForce()
	if err != nil {
		return err
	}
	s := p.Show(os.Getuid())[0]
	return a.print(s, func() { text(s) })
}

// noteHeld says it if this user's programs hold more than their ration.
func (a *app) noteHeld() {
	j := node.ReadJob(job.Job{Path: job.OfUserPath(os.Getuid())}, node.Options{ReadOnly: true})
	for _, d := range j.Devices {
		if d.Limited && d.Used > d.Limit {
			a.out.paragraph(plain, 2, "Your programs hold %s of GPU %d. Nothing is taken away; requests are refused until %s were returned.", humanfmt.Bytes(d.Used), d.Device, humanfmt.Bytes(d.Used-d.Limit))
		}
	}
}

// noteTooSmall says it if this user's ration is less than a program of the user has needed to start.
func (a *app) noteTooSmall() {
	path := job.OfUserPath(os.Getuid())
	limits, err := region.OpenOperatorLimits(path)
	costs, err2 := region.ReadCosts(path)
	if errors.Join(err, err2) != nil || len(job.RunsOf(os.Getuid())) > 0 {
		return // nothing was measured, or this is not the whole ration
	}
	for d, cost := range costs.Device {
		least := cost.Units() * abi.Unit
		if l, err := limits.Limit(d); err == nil && l.Limited() && l.Bytes() > 0 && l.Bytes() < least {
			a.out.paragraph(plain, 2, "No program of yours can start with that: a context alone takes %s of GPU %d.", humanfmt.Bytes(least), d)
		}
	}
}

func newPolicyMoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "move [GPU]",
		Short: "Move your ration to another GPU",
		Long: `Move your ration to another GPU of a machine with several: to GPU, a number that
ration ps shows (0,2 if your ration is on two), or else to the other GPU with
most memory left. End your programs first: a program stays on the GPU
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
			return a.printStanding(func(policy.Standing) { a.out.printf("Your ration is on %v.\n", at) })
		},
	}
}
