package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/policy"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

// Why is what `ration why --json` prints.
type Why struct {
	Refusals []WhyRefusal      `json:"refusals"`        // newest first
	Denied   []machine.Denied  `json:"policy_refusals"` // rations that the policy refused; newest first
	Waiting  []machine.Waiting `json:"waiting"`         // what has no room yet
	Deaths   []WhyDeath        `json:"deaths"`          // newest first
	Compute  []WhyCompute      `json:"compute"`         // for each job and device with a share or a cap
	Places   []WhyPlace        `json:"places"`          // for each job that sees only some of the machine's devices
}

// WhyPlace says which devices a job sees, and why these.
type WhyPlace struct {
	title   string
	verb    string // is or was
	Job     string `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path    string `json:"path"`
	Devices []int  `json:"devices"` // the machine's numbers
	Text    string `json:"text"`
}

// WhyCompute is a job's ration of a device's time, in words.
type WhyCompute struct {
	title  string
	Job    string `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path   string `json:"path"`
	Device int    `json:"device"`
	machine.Compute
	Text string `json:"text"`
}

// WhyDeath is a death with the name of its job.
type WhyDeath struct {
	title string

	Job  string `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path string `json:"path"`
	machine.Death
	Earlier bool   `json:"earlier,omitempty"` // as WhyRefusal.Earlier
	Text    string `json:"text"`
}

// WhyRefusal is a refusal with the names of its job and processes. Sizes are bytes.
type WhyRefusal struct {
	Job  string `json:"job,omitempty"` // empty for a region outside the folder of jobs
	Path string `json:"path"`
	machine.Refusal
	Earlier bool        `json:"earlier,omitempty"` // of an earlier job of this name, which was removed
	Name    string      `json:"name"`              // name of the refused process; empty if it has ended
	Free    uint64      `json:"free"`
	Top     []WhyHolder `json:"top"` // the processes that held most, largest first
	Text    string      `json:"text"`
}

// WhyHolder is a process that held much memory at that time.
type WhyHolder struct {
	machine.Holder
	Name string `json:"name"` // empty if the process has ended
}

func newWhyCommand(a *app) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:        "why [JOB]",
		SuggestFor: []string{"explain"},
		Short:      "Explain the latest refusals, and shares of time",
		Long: `Explain the latest refusals, the newest first: which process asked for how much,
what was free, and which processes held the rest at that moment. Rations that
the machine's policy refused come first: what was asked for, and which users
held the memory. Before them are commands and users that wait for room.

Then it shows the latest deaths: which process ended without returning its
memory, and how that was noticed. Then it shows shares of a device's time and
caps on it: the time slice, and whether it is enforced; and priorities, with why
one has no effect now. Then it shows the jobs that see only some of the
machine's GPUs, and why they are on these.

JOB is a name that ration ps shows, the path of a region, with a slash in it,
or for root USER/NAME, a job of another user. Without it, all jobs are shown. A
region keeps its latest 256 refusals. A request that the limit allows, and that
the driver refuses because the GPU itself is full, is not among them: the
library's log has most of them, one a second (RATION_LOG_FILE). A process that
has ended is shown by its PID. A repeated request is shown once, with the
number of times. If an agent runs (ration agent), events of removed jobs are
shown as well, and marked if a later job has the name.

Exit status: 0, also when nothing was refused; 3 if there is no such job, or its
region could not be read.`,
		Example:           "  ration why\n  ration why train -n 3\n  ration why train --json",
		Args:              argCount(0, 1, "one job"),
		ValidArgsFunction: completeJobs(1),
		RunE:              func(_ *cobra.Command, args []string) error { return a.runWhy(args, count) },
	}
	cmd.Flags().IntVarP(&count, "count", "n", 20, "how many to show, at most")
	return cmd
}

func (a *app) runWhy(names []string, count int) error {
	if count < 1 {
		return usageError("-n %d: not a number of refusals (use 1 or more)", count)
	}
	jobs, err := a.readJobs(names)
	gone, silent := removedJobs(jobs, names)
	a.noteSilent(silent, "events of removed jobs are not shown")
	m, _ := node.Jobs() // if it cannot be read, there is less to explain
	denied, waiting := deniedTo(names), waitingAs(&m, names)
	if err != nil && (len(gone)+len(denied)+len(waiting) == 0 || !errors.Is(err, job.ErrNoJob)) {
		return err
	}
	jobs = append(jobs, gone...)
	out := explain(jobs, count)
	out.Denied, out.Waiting = denied[:min(count, len(denied))], waiting
	if a.json {
		return a.out.printJSON(out)
	}
	up := job.PolicyUp()
	down := up != nil && !*up
	if down {
		without := "are refused CUDA"
		if p, err := policy.InForce(); err == nil && p.Missing == policy.MissingOpen {
			without = "have no limit"
		}
		a.out.paragraph(plain, 0, "The service of this machine's policy does not run, so users without a job %s (root starts it: systemctl start ration-policy, or ration policy keep).", without)
	}
	for _, w := range out.Waiting {
		a.printAt(w.Since, fmt.Sprintf("%s waits for %s since then, place %d in the queue", waitingTitle(&w), w.WantsText(), w.Place))
	}
	for i := range jobs {
		if jobs[i].Sleep == machine.Asleep {
			a.out.printf("%s.\n", a.out.wrap(termtext.Printable(node.ShownName(&jobs[i])+" is asleep: "+node.SleepText(&jobs[i], time.Now())), 2))
		}
	}
	for _, d := range out.Denied {
		a.printAt(d.Time, machine.DeniedSentence(&d))
	}
	if len(denied)+len(waiting) == 0 || len(out.Refusals) > 0 {
		a.printRefusals(jobs, count, down)
	}
	for i, d := range out.Deaths {
		if i == 0 {
			a.out.printf("\n")
		}
		a.printAt(d.Time, d.title+earlierText(d.Earlier)+": "+d.Text)
	}
	for i, c := range out.Compute {
		if i == 0 {
			a.out.printf("\n")
		}
		a.out.printf("%s.\n", a.out.wrap(termtext.Printable(fmt.Sprintf("%s, device %d: %s", c.title, c.Device, c.Text)), 2))
	}
	for i := range jobs {
		if text := prioritySentence(&m, &jobs[i]); text != "" && jobs[i].State != machine.Ended {
			a.out.printf("%s.\n", a.out.wrap(termtext.Printable(node.ShownName(&jobs[i])+": "+text), 2))
		}
	}
	for i := range jobs {
		if text := laterText(&jobs[i]); text != "" {
			a.out.printf("%s.\n", a.out.wrap(termtext.Printable(node.ShownName(&jobs[i])+" "+text), 2))
		}
	}
	for i, c := range out.Places {
		if i == 0 {
			a.out.printf("\n")
		}
		a.out.printf("%s.\n", a.out.wrap(termtext.Printable(fmt.Sprintf("%s %s on %s: %s", c.title, c.verb, gpusText(c.Devices), c.Text)), 2))
	}
	return nil
}

// laterText says where a user's job has less than the ration now; empty for other jobs.
func laterText(j *machine.Job) string {
	uid, is := job.PolicyUser(j.Path)
	if !is || job.IsRun(j.Path) || j.State == machine.Ended {
		return ""
	}
	p, err := policy.InForce()
	if err != nil {
		return ""
	}
	s := p.Show(uid)[0]
	return s.LaterText()
}

// deniedTo returns the rations that the policy refused to the users with one of the names, or to all,
// newest first.
func deniedTo(names []string) []machine.Denied {
	all, _ := machine.ReadDenied() // if it cannot be read, there is nothing to explain
	all = slices.DeleteFunc(all, func(d machine.Denied) bool {
		return len(names) > 0 && !slices.Contains(names, d.User) && !slices.Contains(names, job.OfUser(d.UID))
	})
	slices.Reverse(all)
	return slices.Concat([]machine.Denied{}, all)
}

// waitingAs returns the commands and users that wait for room and have one of the names, or all.
func waitingAs(m *machine.Machine, names []string) []machine.Waiting {
	return slices.DeleteFunc(slices.Concat([]machine.Waiting{}, m.Waiting), func(w machine.Waiting) bool {
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return isName(name, w.Job, w.Owner) })
	})
}

// prioritySentence says whether the priority of a job has an effect now, from a read of all jobs if that has it.
func prioritySentence(m *machine.Machine, j *machine.Job) string {
	if i := slices.IndexFunc(m.Jobs, func(other machine.Job) bool { return other.Path == j.Path }); i >= 0 {
		j = &m.Jobs[i]
	}
	return j.PrioritySentence()
}

// printAt prints a sentence with its time.
func (a *app) printAt(t time.Time, text string) {
	clock := clockText(t, time.Now())
	a.out.printf("%s  %s.\n", a.out.style(dim, clock), a.out.wrap(termtext.Printable(text), len(clock)+2))
}

// removedJobs returns jobs that exist only in an agent's events: those with one of the names, or
// all. Without an agent it returns none. It returns an error if an agent does not answer.
func removedJobs(there []machine.Job, names []string) (out []machine.Job, err error) {
	c, err := agent.Find()
	if err != nil {
		return nil, nil
	}
	index := map[machine.JobID]int{} // index in out; -1 for jobs that exist
	for _, j := range there {
		index[j.ID()] = -1
	}
	err = c.Events(context.Background(), false, func(e machine.Event) error {
		id := e.JobID()
		i, known := index[id]
		if i < 0 && known || e.Refusal == nil && e.Death == nil || len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return isNamed(&e, name) }) {
			return nil
		}
		if !known {
			i = len(out)
			index[id], out = i, append(out, machine.Job{Name: e.Job, Path: e.Path, Owner: e.Owner, UID: e.UID, Created: e.Created, State: machine.Ended})
		}
		if e.Refusal != nil {
			out[i].Refusals = slices.Insert(out[i].Refusals, 0, *e.Refusal) // newest first
		} else {
			out[i].Deaths = slices.Insert(out[i].Deaths, 0, *e.Death)
		}
		return nil
	})
	return out, err
}

// isEarlier reports whether a later one of the jobs has the name of this one, which was removed before.
func isEarlier(jobs []machine.Job, j *machine.Job) bool {
	return slices.ContainsFunc(jobs, func(later machine.Job) bool {
		return later.ID().Path == j.ID().Path && later.Created.After(j.Created)
	})
}

// earlierText follows the name of a job.
func earlierText(earlier bool) string {
	if earlier {
		return " (an earlier job of this name)"
	}
	return ""
}

// isNamed reports whether an event belongs to a job with that name.
func isNamed(e *machine.Event, argument string) bool {
	return argument == e.Path || isName(argument, e.Job, e.Owner)
}

// isName reports whether an argument names a job of an owner. A run of a policy has the owner in its name. A plain name is of
// this user's job, if there is one.
func isName(argument, name, owner string) bool {
	switch {
	case name == "":
		return false
	case argument == owner+"/"+name, argument == name && strings.Contains(name, "/"):
		return true
	case argument != name && owner+"/"+argument != name:
		return false
	}
	return owner == proc.UserName(os.Geteuid()) || len(job.FoldersNamed(argument)) == 0
}

// waitingTitle names what waits for room as ration ps does.
func waitingTitle(w *machine.Waiting) string {
	if w.Job == "" {
		return w.Title()
	}
	return node.ShownName(&machine.Job{Name: w.Job, Path: w.Path, Owner: w.Owner})
}

// readJobs reads the named jobs, or all jobs. An unreadable job is an error if it was named, and a
// warning otherwise.
func (a *app) readJobs(names []string) (readable []machine.Job, err error) {
	if len(names) == 0 {
		m, err := node.Jobs()
		if err != nil {
			return nil, statusError{err, ExitOpen}
		}
		for _, s := range m.Jobs {
			if printError(a.err, s.Err()); s.Err() == nil {
				readable = append(readable, s)
			}
		}
		return readable, nil
	}
	for _, name := range names {
		found, err := lookUpJob(name, job.Find)
		if err != nil {
			return nil, err
		}
		s := node.ReadJob(found, node.Options{ReadOnly: true})
		if s.Err() != nil {
			return nil, statusError{s.Err(), ExitOpen}
		}
		if s.Name == "" { // another user's, found by name
			s.Name = strings.TrimPrefix(nameOf(name, found), s.Owner+"/")
		}
		readable = append(readable, s)
	}
	return readable, nil
}

// printRefusals prints the latest refusals as sentences. down says that the policy's service does not run: then programs
// without a job are refused, and nobody records that.
func (a *app) printRefusals(jobs []machine.Job, count int, down bool) {
	type jobRefusal struct {
		machine.RepeatedRefusal
		job *machine.Job
	}
	var refusals []jobRefusal
	for i := range jobs {
		for _, f := range machine.GroupRefusals(jobs[i].Refusals) {
			refusals = append(refusals, jobRefusal{f, &jobs[i]})
		}
	}
	slices.SortStableFunc(refusals, func(x, y jobRefusal) int { return y.Time.Compare(x.Time) })
	switch {
	case len(refusals) == 0 && down:
		a.out.paragraph(plain, 0, "No request of a job was refused. What was refused to programs without a job is not recorded while that service does not run.")
		return
	case len(refusals) == 0:
		a.out.printf("No request was refused.\n")
		if a.out.tty {
			a.out.paragraph(dim, 0, "What the driver refused because a GPU itself was full is not here: the program's own output says so, and ration ps shows who holds the GPU.")
		}
		return
	}
	for _, f := range refusals[:min(count, len(refusals))] {
		text := fmt.Sprintf("%s%s, device %d: %s", node.ShownName(f.job), earlierText(isEarlier(jobs, f.job)), f.Device, f.Sentence(f.job.Processes))
		if f.Times > 1 {
			text += fmt.Sprintf("; %s times in %s", humanfmt.Count(f.Times), humanfmt.Duration(f.Time.Sub(f.First)))
		}
		a.printAt(f.Time, text)
	}
	if f := refusals[0]; a.out.tty && f.Held+f.Asked <= uint64(limit.TiB) {
		needed := (f.Held + f.Asked + uint64(limit.MiB) - 1) / uint64(limit.MiB) * uint64(limit.MiB)
		command := fmt.Sprintf("ration limit %s %s --device %d", node.ShownName(f.job), limit.Size(needed).Exact(), f.Device)
		if f.job.State == machine.Ended {
			command = fmt.Sprintf("ration run --mem %s", limit.Size(needed).Exact())
		} else if _, ofPolicy := job.PolicyUser(f.job.Path); ofPolicy && !job.AllUsers() {
			command = fmt.Sprintf("ration policy ask --mem %s, if your rule allows that (ration policy show)", limit.Size(needed).Exact())
			if _, _, run := job.RunOf(filepath.Base(filepath.Dir(f.job.Path))); run {
				command = fmt.Sprintf("ration run --mem %s", limit.Size(needed).Exact())
			}
		}
		a.out.printf("\n%s\n", a.out.style(dim, a.out.wrap("The newest would have been granted with: "+command, 0)))
	}
}

// clockText formats a time of day, with the date if that is not today.
func clockText(t, now time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// gpusText formats numbers of GPUs for a sentence: GPU 1, GPUs 0, 2.
func gpusText(devices []int) string {
	var parts []string
	for _, d := range devices {
		parts = append(parts, strconv.Itoa(d))
	}
	if len(parts) == 1 {
		return "GPU " + parts[0]
	}
	return "GPUs " + strings.Join(parts, ", ")
}

// explain returns explanations for jobs, the latest of each kind.
func explain(jobs []machine.Job, count int) Why {
	out := Why{Refusals: []WhyRefusal{}, Deaths: []WhyDeath{}, Compute: []WhyCompute{}, Places: []WhyPlace{}}
	for _, s := range jobs {
		if s.Placed != "" && (s.State != machine.Ended || len(jobs) == 1) {
			place := WhyPlace{node.ShownName(&s), "is", s.Name, s.Path, []int{}, s.Placed}
			if s.State == machine.Ended {
				place.verb = "was"
			}
			for _, d := range s.Devices {
				place.Devices = append(place.Devices, d.Device)
			}
			out.Places = append(out.Places, place)
		}
		out.Compute = append(out.Compute, whyCompute(s)...)
		earlier := isEarlier(jobs, &s)
		for _, d := range s.Deaths {
			out.Deaths = append(out.Deaths, WhyDeath{node.ShownName(&s), s.Name, s.Path, d, earlier, d.Sentence()})
		}
		for _, f := range s.Refusals {
			r := WhyRefusal{s.Name, s.Path, f, earlier, f.RequesterName(s.Processes), f.Free(), []WhyHolder{}, f.Sentence(s.Processes)}
			for i, h := range f.Top {
				r.Top = append(r.Top, WhyHolder{h, f.HolderName(i, s.Processes)})
			}
			out.Refusals = append(out.Refusals, r)
		}
	}
	slices.SortStableFunc(out.Refusals, func(x, y WhyRefusal) int { return y.Time.Compare(x.Time) })
	slices.SortStableFunc(out.Deaths, func(x, y WhyDeath) int { return y.Time.Compare(x.Time) })
	out.Refusals, out.Deaths = out.Refusals[:min(count, len(out.Refusals))], out.Deaths[:min(count, len(out.Deaths))]
	return out
}
