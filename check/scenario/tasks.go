package scenario

import (
	"fmt"

	"ration/internal/humanfmt"
	"ration/machine"
)

// task is a step that the newcomer does. fill completes its text and its commands.
type task struct {
	title    string
	text     string
	commands []string               // commands that do it
	done     func(l *lesson) string // text when it is done; "" until then
	missing  func(l *lesson) string // what to say if the newcomer did something else
}

var tasks = []task{
	{
		title: "limit a job",
		text: "fake-train is a small CUDA program; \"fake-train --hold 3g\" asks for 3 GiB and keeps it. Start it as a job with 4 GiB, " +
			"in the background, and give the job a name:",
		commands: []string{"ration run --fake-gpu h200 --mem 4g --name mine -- fake-train --hold 3g &"},
		done: func(l *lesson) string {
			for _, j := range l.jobs() {
				if j.State == machine.Running && j.device.Limited && j.data > 0 {
					l.name, l.limit = j.Name, j.device.Limit
					return fmt.Sprintf("The job %s has a limit of %s and holds %s: %s of data, and the context that every CUDA program has.",
						j.Name, humanfmt.Bytes(j.device.Limit), humanfmt.Bytes(j.device.Used), humanfmt.Bytes(j.data))
				}
			}
			return ""
		},
		missing: func(l *lesson) string {
			for _, j := range l.jobs() {
				if j.State == machine.Running && !j.device.Limited {
					return "There is a job, and it has no limit: --mem 4g is missing. (\"kill %1\" does not work here; start another one.)"
				}
			}
			return "Not yet: there is no job that runs with a limit. The & at the end is needed, as the program goes on until it is stopped. (hint shows the command.)"
		},
	},
	{
		title:    "change it while it runs",
		text:     "The job {job} has {limit}. Give it more; the program does not notice, and need not be started again. First look, if you like, with: ration ps",
		commands: []string{"ration limit {job} 8g"},
		done: func(l *lesson) string {
			limit := l.mine().device.Limit
			if limit <= l.limit {
				return ""
			}
			return fmt.Sprintf("The limit is %s now, and the process is the same. Less works as well: then nothing is taken away, and nothing more is granted until enough was freed.",
				humanfmt.Bytes(limit))
		},
		missing: func(l *lesson) string {
			if l.mine().State != machine.Running {
				return l.fill("The job {job} has ended. Start it again, as in the first task, with this name.")
			}
			return "Not yet: the limit is not higher than before. (hint shows the command.)"
		},
	},
	{
		title: "explain a refusal",
		text: "Start a second program in the same job, which asks for more than is left. Then ask why it was refused, " +
			"and type the PID of the process that held most:",
		commands: []string{"ration run --fake-gpu h200 --name {job} --join -- fake-train 6g", "ration why {job}"},
		done: func(l *lesson) string {
			if top := l.mine().topHolder(); top == "" || l.answer != top {
				return ""
			}
			return fmt.Sprintf("PID %s held most, so that is the process to end or to shrink, or the limit must be higher. "+
				"The refused program got CUDA's own out-of-memory error, as on a full card.", l.answer)
		},
		missing: func(l *lesson) string {
			switch {
			case l.mine().topHolder() == "":
				return "Nothing was refused yet. (hint shows the commands.)"
			case l.answer != "":
				return l.fill("That is not the process that held most: ration why {job} names it, after \"most was held by\".")
			}
			return "Now type the PID of the process that held most, as ration why shows it."
		},
	},
}
