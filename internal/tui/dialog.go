package tui

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// dialog is a prompt or a question in the last lines. It gets all keys. It ends by setting the
// model's dialog to nil.
type dialog interface {
	press(m *Model, key tea.KeyPressMsg) tea.Cmd
	lines(m *Model) []string
}

// pasted is a dialog into which text can be pasted.
type pasted interface{ paste(m *Model, text string) }

// edited returns text after a key press: typed characters are appended, and backspace removes the
// last one.
func edited(text string, key tea.KeyPressMsg) string {
	const most = 200 // characters
	switch name := key.String(); {
	case name == "backspace" && text != "":
		runes := []rune(text)
		return string(runes[:len(runes)-1])
	case name == "ctrl+u":
		return ""
	case name == "ctrl+w":
		text = strings.TrimRight(text, " ")
		return text[:strings.LastIndex(text, " ")+1]
	case key.Text != "" && len([]rune(text)) < most:
		return text + termtext.Printable(key.Text)
	}
	return text
}

// filterPrompt asks for a filter, which applies while it is typed.
type filterPrompt struct{}

func (*filterPrompt) press(m *Model, key tea.KeyPressMsg) tea.Cmd {
	switch key.String() {
	case "enter":
		m.dialog = nil
	case "esc":
		m.dialog, m.filter = nil, ""
	default:
		m.filter = edited(m.filter, key)
	}
	return nil
}

func (*filterPrompt) paste(m *Model, text string) { m.filter += termtext.Printable(text) }

func (*filterPrompt) lines(m *Model) []string {
	return []string{m.prompt("filter: ", m.filter, []hint{{"Enter", "keep"}, {"Esc", "show all"}})}
}

// prompt returns a line with the typed text, and with keys if there is space.
func (m *Model) prompt(label, text string, hints []hint) string {
	room := max(1, m.width-termtext.Width(label)-1)
	if excess := termtext.Width(text) - room; excess > 0 {
		text = string([]rune(text)[min(excess, len([]rune(text))):]) // the user types at its end
	}
	out := m.theme.bold.Render(label) + text + m.theme.edit
	if keys := m.keyLine(hints, m.width-termtext.Width(out)-3); keys != "" {
		out += "   " + keys
	}
	return out
}

// limitPrompt asks for the new limits of a job.
type limitPrompt struct {
	job     machine.Job
	text    string
	problem string // error about the last text
	busy    bool   // the limit is being changed
}

// limitSet is the result of a change.
type limitSet struct {
	prompt *limitPrompt
	said   string
	err    error
}

const readOnlyText = "nothing may be changed here: ration top was started with --read-only"

// refuse shows why a key does nothing.
func (m *Model) refuse(why string) { m.message = message{why, true} }

// askLimit asks for a new limit of the selected job.
func (m *Model) askLimit() tea.Cmd {
	j := m.shownJob()
	switch {
	case j == nil:
		m.refuse("l changes the limits of a job: select one")
	case m.actions == nil:
		m.refuse(readOnlyText)
	case j.State == node.Waiting:
		m.refuse(fmt.Sprintf("%s waits for room and has no limits yet: end it with x, and start it with others", j.Title()))
	default:
		m.dialog = &limitPrompt{job: *j}
	}
	return nil
}

func (p *limitPrompt) press(m *Model, key tea.KeyPressMsg) tea.Cmd {
	switch name := key.String(); {
	case name == "esc", name == "enter" && strings.TrimSpace(p.text) == "":
		m.dialog = nil
	case p.busy:
	case name == "enter":
		p.busy = true
		actions, text := m.actions, p.text
		return func() tea.Msg {
			said, err := actions.SetLimit(p.job, text)
			return limitSet{p, said, err}
		}
	default:
		p.text = edited(p.text, key)
	}
	return nil
}

func (p *limitPrompt) paste(_ *Model, text string) { p.text += termtext.Printable(text) }

// limitIsSet shows the result of setting a limit. An error is shown beside the typed text, so that
// the user can correct it.
func (m *Model) limitIsSet(r limitSet) {
	r.prompt.busy = false
	switch {
	case r.err == nil:
		if m.dialog == r.prompt {
			m.dialog = nil
		}
		m.message = message{strings.Join(strings.Fields(r.said), " "), false}
	case m.dialog == r.prompt:
		r.prompt.problem = r.err.Error()
	default:
		m.message = message{r.err.Error(), true}
	}
}

func (p *limitPrompt) lines(m *Model) (lines []string) {
	if p.problem != "" {
		lines = m.say(p.problem, m.theme.bad)
	} else {
		lines = wrap(fmt.Sprintf("The limits of %s: %s. New ones as ration limit takes them: 20g, 25%%, 0=10g,1=none, --compute 50%%",
			p.job.Title(), limitsText(&p.job)), m.width)
	}
	hints := []hint{{"Enter", "change"}, {"Esc", "leave them"}}
	if p.busy {
		hints = []hint{{"...", "changing"}}
	}
	return append(lines, m.prompt("limit: ", p.text, hints))
}

// limitsText formats the memory limits of a job briefly.
func limitsText(j *machine.Job) string {
	var parts []string
	for _, d := range j.Devices {
		text := "none"
		if d.Limited {
			text = humanfmt.Bytes(d.Limit)
		}
		if !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// signals lists the signals that can be sent, in the order in which the arrow keys select them.
var signals = []struct {
	number syscall.Signal
	name   string
}{
	{syscall.SIGTERM, "SIGTERM"}, {syscall.SIGINT, "SIGINT"}, {syscall.SIGKILL, "SIGKILL"}, {syscall.SIGSTOP, "SIGSTOP"},
	{syscall.SIGCONT, "SIGCONT"}, {syscall.SIGHUP, "SIGHUP"}, {syscall.SIGUSR1, "SIGUSR1"}, {syscall.SIGUSR2, "SIGUSR2"},
}

// signalQuestion asks whether to send a signal to a process.
type signalQuestion struct {
	pid     int      // PID of the row
	process *Process // nil until it is found
	signal  int      // index in signals
}

// processFound is the process of a question, or an error.
type processFound struct {
	question *signalQuestion
	process  *Process
	err      error
}

// signalSent is the result of sending a signal.
type signalSent message

// findProcess starts the question about the process of the selected row, unless only the job claims
// which process that is.
func (m *Model) findProcess() tea.Cmd {
	r := m.selectedProcess()
	switch {
	case r == nil:
		m.refuse("k sends a signal to a process: select one")
	case m.actions == nil:
		m.refuse(readOnlyText)
	case r.State == machine.Dead:
		m.refuse(fmt.Sprintf("pid %s has ended already", claim(*r, fmt.Sprint(r.PID))))
	case !r.Verified || r.Local.PID == 0:
		m.refuse(fmt.Sprintf("pid %s is only what the job says: a signal could reach another process", claim(*r, fmt.Sprint(r.PID))))
	default:
		actions, id, region := m.actions, r.Local, ""
		if r.job != nil {
			region = r.job.Path
		}
		q := &signalQuestion{pid: id.PID}
		m.dialog = q
		return func() tea.Msg {
			found, err := actions.Process(id, region)
			return processFound{q, found, err}
		}
	}
	return nil
}

// askSignal asks the question, unless the user has cancelled it.
func (m *Model) askSignal(f processFound) {
	left := m.dialog != f.question
	switch {
	case left && f.err == nil:
		_ = f.process.Handle.Close()
	case left:
	case f.err != nil:
		m.dialog, m.message = nil, message{f.err.Error(), true}
	default:
		f.question.process = f.process
	}
}

func (q *signalQuestion) press(m *Model, key tea.KeyPressMsg) tea.Cmd {
	switch key.String() {
	case "left", "up":
		q.signal = (q.signal + len(signals) - 1) % len(signals)
	case "right", "down":
		q.signal = (q.signal + 1) % len(signals)
	case "y", "Y":
		if q.process == nil { // the question is not shown yet
			return nil
		}
		m.dialog = nil
		return q.send
	default:
		m.dialog = nil
		if q.process != nil {
			_ = q.process.Handle.Close()
		}
	}
	return nil
}

func (q *signalQuestion) send() tea.Msg {
	defer q.process.Handle.Close()
	s := signals[q.signal]
	if err := q.process.Handle.Signal(s.number); err != nil {
		return signalSent{fmt.Sprintf("sending %s to %s: %v", s.name, q.subject(), err), true}
	}
	return signalSent{fmt.Sprintf("%s was sent to %s", s.name, q.subject()), false}
}

func (q *signalQuestion) subject() string {
	return fmt.Sprintf("%s (pid %d) of user %s", q.process.Name, q.process.PID, q.process.User)
}

func (q *signalQuestion) lines(m *Model) []string {
	text := fmt.Sprintf("Is pid %d still that process?", q.pid)
	if q.process != nil {
		text = fmt.Sprintf("Send %s to %s?", signals[q.signal].name, q.subject())
	}
	return append(m.say(text, m.theme.bold), m.keyLine([]hint{{"y", "yes"}, {m.theme.sides, "other signal"}, {"else", "no"}}, m.width))
}
