package tui

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/check/expect"
	"ration/machine"
)

// fakeActions notes what is done.
type fakeActions struct {
	did    []string
	region string // of the process that was looked for last
}

func (a *fakeActions) SetLimit(j machine.Job, arguments string) (string, error) {
	if !strings.HasSuffix(arguments, "g") {
		return "", fmt.Errorf("%q: not a size (use a number with k, m, g or t, a share like 25%%, or none)", arguments)
	}
	a.did = append(a.did, "limit "+j.Name+" "+arguments)
	return j.Name + ", device 0: the limit is 20 GiB now;\n  it was 10 GiB.\n", nil
}

func (a *fakeActions) Process(id machine.ProcessID, region string) (*Process, error) {
	a.region = region
	if id.Start != 1 {
		return nil, errors.New("pid 9: it is no longer there")
	}
	return &Process{id.PID, fmt.Sprint("name-of-", id.PID), "dev", fakeHandle{a, id.PID}}, nil
}

func (a *fakeActions) Stop(j machine.Job) (string, error) {
	a.did = append(a.did, "stop "+j.Name)
	return j.Name + ": 4 processes got a signal", nil
}

func (a *fakeActions) Signal(j machine.Job, s syscall.Signal) (string, error) {
	a.did = append(a.did, fmt.Sprintf("signal %d to job %s", s, j.Name))
	return "", errors.New("sending: it is not yours")
}

type fakeHandle struct {
	actions *fakeActions
	pid     int
}

func (h fakeHandle) Close() error {
	h.actions.did = append(h.actions.did, fmt.Sprint("close ", h.pid))
	return nil
}

func (h fakeHandle) Signal(s syscall.Signal) error {
	h.actions.did = append(h.actions.did, fmt.Sprintf("signal %d to %d", s, h.pid))
	return nil
}

// acting returns a model whose actions are noted.
func acting(s Sample) (*Model, *fakeActions) {
	m, a := modelOf(s, 120, 40), &fakeActions{}
	m.actions = a
	return m, a
}

// A limit is changed for the selected job; what is wrong is shown beside what was typed.
func TestLimitPrompt(t *testing.T) {
	m, a := acting(example())
	press(t, m, "down", "l", "text:20 pounds", "enter")
	frame := text(m.Frame())
	expect.Must(t, len(a.did) == 0 && strings.Contains(frame, "not a size") && strings.Contains(frame, "limit: 20 pounds"),
		"did", a.did, frame)
	press(t, m, "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "text:g", "enter")
	expect.True(t, fmt.Sprint(a.did) == "[limit train 20g]" && m.dialog == nil && strings.Contains(text(m.Frame()), "the limit is 20 GiB now; it was 10 GiB."), "did", a.did, text(m.Frame()))
	m, a = acting(example())
	press(t, m, "l", "text:20g", "esc")
	expect.True(t, len(a.did) == 0 && m.dialog == nil, "esc: did", a.did)
	m.actions = nil
	press(t, m, "l")
	expect.True(t, m.dialog == nil && strings.Contains(m.message.text, "--read-only"), "changes a limit with --read-only", m.message.text)
}

// A signal goes to the selected process, after y, and to nothing that is only a claim.
func TestSignal(t *testing.T) {
	m, a := acting(example())
	press(t, m, "down", "tab", "k")
	frame := text(m.Frame())
	expect.Must(t, strings.Contains(frame, "Send SIGTERM to name-of-4711 (pid 4711) of user dev?"), frame)
	expect.Equal(t, a.region, m.sample.Jobs[2].Path)
	press(t, m, "enter")
	expect.True(t, fmt.Sprint(a.did) == "[close 4711]" && m.dialog == nil, "enter is not yes: did", a.did)
	a.did = nil
	press(t, m, "k", "right", "right", "y")
	expect.True(t, fmt.Sprint(a.did) == "[signal 9 to 4711 close 4711]" && strings.Contains(m.message.text, "SIGKILL was sent to name-of-4711 (pid 4711)"), "did", a.did, "says", m.message.text)
	// An answer before the question is none, and one who has left it is not asked.
	a.did = nil
	m.Update(tea.KeyPressMsg{Code: 'k', Text: "k"})
	q := m.dialog.(*signalQuestion)
	press(t, m, "y", "esc")
	m.Update(processFound{question: q, process: &Process{Handle: fakeHandle{a, 4711}}})
	expect.True(t, fmt.Sprint(a.did) == "[close 4711]" && m.dialog == nil, "did", a.did, "dialog", m.dialog)
	a.did = nil
	for name, mark := range map[string]func(p *machine.Process){
		"only what the job says": func(p *machine.Process) { p.Verified = false },
		"only what the job said": func(p *machine.Process) { p.Local = machine.ProcessID{} },
		"has ended already":      func(p *machine.Process) { p.State = machine.Dead },
		"no longer there":        func(p *machine.Process) { p.Local.Start = 2 },
	} {
		s := example()
		mark(&s.Jobs[2].Processes[0])
		m, a := acting(s)
		press(t, m, "down", "tab", "k")
		said := m.message.text
		press(t, m, "y")
		expect.True(t, len(a.did) == 0 && m.dialog == nil && strings.Contains(said, strings.Replace(name, "said", "says", 1)),
			name, "did", a.did, "says", said)
	}
	m, a = acting(wholeMachine()) // one that is in no job, and holds most
	press(t, m, "tab", "k", "y")
	expect.True(t, len(a.did) != 0 && a.did[0] == "signal 15 to 777" && a.region == "", "did", a.did, a.region)
}

// Among the jobs, a signal goes to all processes of the selected job; x ends the job.
func TestStopJob(t *testing.T) {
	m, a := acting(example())
	press(t, m, "down", "x")
	frame := text(m.Frame())
	expect.Must(t, strings.Contains(frame, "End job train of user dev? SIGTERM to all its processes (4 processes on GPUs), and after 10s SIGKILL"), frame)
	press(t, m, "enter")
	expect.True(t, len(a.did) == 0 && m.dialog == nil, "enter is not yes: did", a.did)
	press(t, m, "x", "y")
	expect.True(t, fmt.Sprint(a.did) == "[stop train]" && m.message.text == "train: 4 processes got a signal", a.did, m.message.text)
	for _, keys := range [][]string{{"k", "right", "right", "y"}, {"x", "right", "right", "right", "y"}, {"K", "left", "left", "left", "left", "left", "left", "left", "y"}, {"enter", "K", "right", "right", "y"}, {"tab", "K", "right", "right", "y"}} {
		m, a := acting(example())
		press(t, m, "down")
		press(t, m, keys...)
		expect.True(t, fmt.Sprint(a.did) == "[signal 9 to job train]" && m.message.bad && strings.Contains(m.message.text, "not yours"), keys, a.did, m.message.text)
	}
	// A process in no job has no job to end.
	m, a = acting(wholeMachine())
	press(t, m, "tab", "x")
	expect.True(t, len(a.did) == 0 && strings.Contains(m.message.text, "in no job") && m.dialog == nil, a.did, m.message.text)
	m, a = acting(example())
	press(t, m, "e", "end", "x")
	expect.True(t, m.dialog == nil && strings.Contains(m.message.text, "has ended already"), m.message.text)
	m.actions = nil
	press(t, m, "home", "x")
	expect.True(t, m.dialog == nil && strings.Contains(m.message.text, "--read-only") && len(a.did) == 0, m.message.text)
}

// A command that waits for room has its place, can be ended, and has no limits to change; a user who only waits is one.
func TestWaiting(t *testing.T) {
	s := example()
	s.Jobs = s.Jobs[:1] // one that has ended
	wants := func(device int) []machine.Wanted { return []machine.Wanted{{Device: device, Bytes: 20 * gib}} }
	s.Waiting = []machine.Waiting{
		{Place: 2, Job: "fold", Path: "/run/ration/fold/region", Owner: "ida", UID: 7, Since: ago(90 * time.Second), Wants: wants(-1)},
		{Place: 1, Job: s.Jobs[0].Name, Path: s.Jobs[0].Path, Owner: "eve", Since: ago(3 * time.Minute), Wants: wants(0)},
	}
	m, a := acting(s)
	m.Jobs.Sort = "name"
	frame := text(m.Frame())
	expect.True(t, strings.Contains(frame, "waiting, place 2") && strings.Contains(frame, " any ") && !strings.Contains(frame, "-1"), frame)
	press(t, m, "l")
	expect.True(t, m.dialog == nil && strings.Contains(m.message.text, "fold waits for room and has no limits yet"), m.message.text)
	press(t, m, "x")
	expect.True(t, strings.Contains(strings.Join(strings.Fields(text(m.Frame())), " "), "End job fold of user ida, which waits for room? SIGTERM to its command, which leaves the queue"), text(m.Frame()))
	press(t, m, "y")
	expect.Equal(t, fmt.Sprint(a.did), "[stop fold]")
	press(t, m, "enter")
	frame = text(m.Frame())
	expect.True(t, strings.Contains(frame, "job fold") && strings.Contains(frame, "place 2 in the queue, for 20 GiB on any GPU") && !strings.Contains(frame, "0 B of"), frame)
	press(t, m, "esc", "e")
	frame = text(m.Frame())
	expect.True(t, strings.Count(frame, "yesterday") == 1 && strings.Contains(frame, "waiting, place 1"), "beside an earlier job of the name", frame)
	press(t, m, "u")
	frame = text(m.Frame())
	expect.True(t, strings.Contains(frame, "WAITING") && strings.Contains(frame, "ida"), frame)
}
