package tui

import (
	"fmt"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/machine"
)

// jobQuestion asks whether to end a job, or to send a signal to all its processes.
type jobQuestion struct {
	job    machine.Job
	choice int // -1 to end the job, otherwise an index in signals
}

const endJob = -1

// askJob asks about the selected job.
func (m *Model) askJob(choice int) tea.Cmd {
	j := m.shownJob()
	switch {
	case j == nil:
		m.refuse("x ends all processes of a job: select one (k sends a signal to a process that is in no job)")
	case m.actions == nil:
		m.refuse(readOnlyText)
	case j.State == machine.Ended && j.LivingCount() == 0:
		m.refuse(fmt.Sprintf("%s has ended already", j.Title()))
	default:
		m.dialog = &jobQuestion{*j, choice}
	}
	return nil
}

// pressSignal asks about a signal to the selected process or, among the jobs, to all processes of the selected job.
func (m *Model) pressSignal() tea.Cmd {
	if _, inDetails := m.page.(*details); m.focus == jobsTable && !inDetails {
		return m.askJob(0)
	}
	return m.findProcess()
}

func (q *jobQuestion) press(m *Model, key tea.KeyPressMsg) tea.Cmd {
	const choices = 1 // before the signals
	switch n := len(signals) + choices; key.String() {
	case "left", "up":
		q.choice = (q.choice+choices+n-1)%n - choices
	case "right", "down":
		q.choice = (q.choice+choices+1)%n - choices
	case "y", "Y":
		m.dialog, m.message = nil, message{q.subject() + ": waiting for the end of its processes", false}
		if q.choice != endJob {
			m.message = message{}
		}
		actions := m.actions
		return func() tea.Msg { return q.act(actions) }
	default:
		m.dialog = nil
	}
	return nil
}

func (q *jobQuestion) act(actions Actions) tea.Msg {
	var said string
	var err error
	if q.choice == endJob {
		said, err = actions.Stop(q.job)
	} else {
		said, err = actions.Signal(q.job, signals[q.choice].number)
	}
	if err != nil {
		return signalSent{err.Error(), true}
	}
	return signalSent{said, false}
}

func (q *jobQuestion) subject() string {
	text := "job " + q.job.Title()
	if q.job.Owner != "" {
		text += " of user " + q.job.Owner
	}
	return text
}

func (q *jobQuestion) lines(m *Model) []string {
	text := fmt.Sprintf("End %s? SIGTERM to all its processes (%s on GPUs), and after %v SIGKILL to those that are left.",
		q.subject(), humanfmt.Plural(q.job.LivingCount(), "process", "processes"), StopGrace)
	if q.job.State == node.Waiting {
		text = fmt.Sprintf("End %s, which waits for room? SIGTERM to its command, which leaves the queue, and SIGKILL after %v if it is left.", q.subject(), StopGrace)
	}
	if q.choice != endJob {
		text = fmt.Sprintf("Send %s to all processes of %s?", signals[q.choice].name, q.subject())
	}
	other := "signal instead"
	if q.choice != endJob {
		other = "other signal"
	}
	return append(m.say(text, m.theme.bold), m.keyLine([]hint{{"y", "yes"}, {m.theme.sides, other}, {"else", "no"}}, m.width))
}
