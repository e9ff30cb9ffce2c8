package learn

import (
	"fmt"
	"slices"

	"ration/internal/humanfmt"
	"ration/machine"
)

// task is something that the newcomer does himself.
type task struct {
	title string
	text  func(l *lesson) string

	// commands does it.
	commands func(l *lesson) []string
	// answer is what to type after them, if the task asks a question.
	answer func(l *lesson) string
	// done returns what to say when it is done, and "" until then.
	done func(l *lesson) string
	// missing returns what to say to a newcomer who has done something else.
	missing func(l *lesson) string
	// coming reports that a job is about to do it; nil where that takes no time.
	coming func(l *lesson) bool
}

var tasks = []task{
	{
		title: "limit a job",
		text: func(*lesson) string {
			return "fake-train is a small CUDA program; \"fake-train --hold 3g\" asks for 3 GiB and keeps it. Start it as a job with 4 GiB, " +
				"in the background, and give the job a name:\n\n" +
				"    ration run --fake-gpu h200 --mem 4g --name mine -- fake-train --hold 3g &\n"
		},
		commands: func(*lesson) []string {
			return []string{"ration run --fake-gpu h200 --mem 4g --name mine -- fake-train --hold 3g &"}
		},
		coming: func(l *lesson) bool {
			return slices.ContainsFunc(l.jobs(), func(j machine.Job) bool {
				d := firstDevice(j)
				return j.State == machine.Starting || j.State == machine.Running && d != nil && d.Limited && data(j) == 0
			})
		},
		done: func(l *lesson) string {
			for _, j := range l.jobs() {
				d := firstDevice(j)
				if j.State != machine.Running || d == nil || !d.Limited || data(j) == 0 {
					continue
				}
				l.name, l.limit = j.Name, d.Limit
				return fmt.Sprintf("The job %s has a limit of %s and holds %s: %s of data, and the context that every CUDA program has.",
					j.Name, humanfmt.Bytes(d.Limit), humanfmt.Bytes(d.Used), humanfmt.Bytes(data(j)))
			}
			return ""
		},
		missing: func(l *lesson) string {
			for _, j := range l.jobs() {
				if d := firstDevice(j); j.State == machine.Running && d != nil && !d.Limited {
					return "There is a job, and it has no limit: --mem 4g is missing. (\"kill %1\" does not work here; start another one.)"
				}
			}
			return "Not yet: there is no job that runs with a limit. The & at the end is needed, as the program goes on until it is stopped. (hint shows the command.)"
		},
	},
	{
		title: "change it while it runs",
		text: func(l *lesson) string {
			return fmt.Sprintf("The job %s has %s. Give it more; the program does not notice, and need not be started again. First look, if you like, with: ration ps\n\n"+
				"    ration limit %s 8g\n", l.name, humanfmt.Bytes(l.limit), l.name)
		},
		commands: func(l *lesson) []string { return []string{"ration limit " + l.name + " 8g"} },
		done: func(l *lesson) string {
			j := l.mine()
			if j == nil {
				return ""
			}
			d := firstDevice(*j)
			if d == nil || d.Limit <= l.limit {
				return ""
			}
			return fmt.Sprintf("The limit is %s now, and the process is the same. Less works as well: then nothing is taken away, and nothing more is granted until enough was freed.",
				humanfmt.Bytes(d.Limit))
		},
		missing: func(l *lesson) string {
			if j := l.mine(); j == nil || j.State != machine.Running {
				return fmt.Sprintf("The job %s has ended. Start it again, as in the first task, with this name.", l.name)
			}
			return "Not yet: the limit is not higher than before. (hint shows the command.)"
		},
	},
	{
		title: "explain a refusal",
		text: func(l *lesson) string {
			return fmt.Sprintf("Start a second program in the same job, which asks for more than is left. Then ask why it was refused, "+
				"and type the PID of the process that held most:\n\n"+
				"    ration run --fake-gpu h200 --name %s --join -- fake-train 6g\n"+
				"    ration why %s\n", l.name, l.name)
		},
		commands: func(l *lesson) []string {
			return []string{"ration run --fake-gpu h200 --name " + l.name + " --join -- fake-train 6g", "ration why " + l.name}
		},
		answer: func(l *lesson) string { return topHolder(l.mine()) },
		done: func(l *lesson) string {
			j := l.mine()
			if top := topHolder(j); top == "" || l.answer != top {
				return ""
			}
			return fmt.Sprintf("PID %s held most, so that is the process to end or to shrink, or the limit must be higher. "+
				"The refused program got CUDA's own out-of-memory error, as on a full card.", l.answer)
		},
		missing: func(l *lesson) string {
			switch {
			case topHolder(l.mine()) == "":
				return "Nothing was refused yet. (hint shows the commands.)"
			case l.answer != "":
				return "That is not the process that held most: ration why " + l.name + " names it, after \"most was held by\"."
			}
			return "Now type the PID of the process that held most, as ration why shows it."
		},
	},
}
