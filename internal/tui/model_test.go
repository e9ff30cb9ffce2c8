package tui

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/node"
	"ration/machine"
)

func names(m *Model) string {
	var out []string
	for _, j := range m.jobs() {
		out = append(out, strings.SplitN(j.Name, "-", 2)[0])
	}
	return strings.Join(out, " ")
}

// What runs is shown, the busiest first; ended jobs with a key; the filter and the user choose.
func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{nil, "serve train notebook old"},
		{[]string{"e"}, "serve train notebook old yesterday"},
		{[]string{"e", "e"}, "serve train notebook old"},
		{[]string{"s"}, "serve train notebook old"},
		{[]string{"r"}, "old notebook train serve"},
		{[]string{"s", "s"}, "notebook old serve train"},
		{[]string{"s", "s", "s"}, "train old notebook serve"},
		{[]string{"s", "s", "s", "s"}, "old serve train notebook"},
		{[]string{"s", "s", "s", "s", "s"}, "old notebook train serve"},
		{[]string{"/", "text:user=dev"}, "train old"},
		{[]string{"/", "text:user=dev state=running"}, "train"},
		{[]string{"/", "text:gpu=1"}, "serve"},
		{[]string{"/", "text:gpu=0 ipy"}, "notebook"},
		{[]string{"/", "text:name=*e*"}, "serve notebook"},
		{[]string{"/", "text:state=nonsense"}, ""},
		{[]string{"/", "text:--rank 1"}, "train"},
		{[]string{"/", "text:tr"}, "train serve"}, // serve has a tritonserver
		{[]string{"/", "text:tr", "enter", "esc"}, "serve train notebook old"},
		{[]string{"/", "text:tr", "esc"}, "serve train notebook old"},
		{[]string{"/", "text:trx", "backspace"}, "serve train"},
		{[]string{"/", "text:IPYKERNEL"}, "notebook"},
		{[]string{"/", "text:4712"}, "train"},
		{[]string{"/", "text:epochs"}, "train"},
		{[]string{"u", "down", "enter"}, "train old"},
		{[]string{"u", "down", "enter", "e", "esc"}, "serve train notebook old yesterday"},
		{[]string{"u", "esc"}, "serve train notebook old"},
	} {
		m := modelOf(example(), 80, 24)
		press(t, m, tt.keys...)
		got := names(m)
		expect.True(t, got == tt.want || strings.Contains(tt.want, "train serve") && got == "serve train", tt.keys, got, tt.want)
	}
	// A job that has the device's time is busier than one that holds more.
	s := example()
	s.Jobs[1].Processes[0].Holdings[0].Time = &machine.Time{Percent: 60}
	expect.Equal(t, names(modelOf(s, 80, 24)), "notebook serve train old")
}

// Where a key is pressed decides whether it quits, goes back or types.
func TestQuitAndBack(t *testing.T) {
	quits := func(m *Model, msg tea.KeyPressMsg) bool {
		_, cmd := m.Update(msg)
		if cmd == nil {
			return false
		}
		_, is := cmd().(tea.QuitMsg)
		return is
	}
	q, interrupt := tea.KeyPressMsg{Code: 'q', Text: "q"}, tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	for _, keys := range [][]string{{"/"}, {"l"}, {"tab", "k"}, {"enter"}, {"u"}, {"c"}, {"f"}, {"?"}} {
		m, _ := acting(example())
		press(t, m, keys...)
		expect.True(t, !quits(m, q), "q quits after", keys)
		m, _ = acting(example())
		press(t, m, keys...)
		press(t, m, "esc")
		_, is := m.page.(overview)
		expect.True(t, is && m.dialog == nil && m.filter == "", "after", keys, "esc does not go back")
		m, _ = acting(example())
		press(t, m, keys...)
		expect.True(t, quits(m, interrupt), "after", keys, "ctrl+c does not quit")
	}
	m, _ := acting(example())
	expect.True(t, !quits(m, tea.KeyPressMsg{Code: tea.KeyEscape}), "esc quits: who presses it once too often loses the history")
	expect.True(t, quits(m, q), "q does not quit")
}

// Ticks read; a sample that comes while paused is not shown.
func TestPause(t *testing.T) {
	m := modelOf(example(), 80, 24)
	if _, cmd := m.Update(tick{}); cmd == nil {
		t.Fatal("no command after a tick")
	} else if s, ok := cmd().(Sample); !ok || len(s.Jobs) != 5 {
		t.Errorf("got %v after a tick, want a sample", s)
	}
	press(t, m, "space")
	m.Update(Sample{Time: noon.Add(time.Hour)})
	expect.True(t, m.paused && len(m.sample.Jobs) == 5, "a sample was shown while paused")
	press(t, m, "space")
	m.Update(Sample{Time: noon.Add(time.Hour)})
	expect.True(t, !m.paused && len(m.sample.Jobs) == 0, "not resumed")
}

// Events of a job are still shown after it has gone, and the cursor goes to what took its place.
func TestJobGoes(t *testing.T) {
	m := modelOf(example(), 80, 24)
	press(t, m, "down")
	expect.Must(t, m.job.id == "/run/ration/train/region", "selected is", m.job.id)
	s := example()
	s.Jobs = append(s.Jobs[:2:2], s.Jobs[3:]...)
	m.setSample(s)
	frame := text(m.Frame())
	expect.True(t, strings.Contains(frame, "(4711) asked for 4.5 GiB") && !strings.Contains(frame, "train    "), frame)
	expect.Equal(t, m.job.id, "/run/ration/notebook/region", "selected, in its place")
	// The details of a job that goes say so.
	m = modelOf(example(), 80, 24)
	press(t, m, "down", "enter")
	m.setSample(s)
	frame = text(m.Frame())
	expect.True(t, strings.Contains(frame, "no longer there") && strings.Contains(frame, "python train.py --epochs 90"), frame)
}

// The history of a job is kept, with a bound, and forgotten with it.
func TestHistory(t *testing.T) {
	m := modelOf(example(), 80, 24)
	for i := range maxHistory + 50 {
		s := example()
		s.Time = noon.Add(time.Duration(i) * time.Second)
		m.setSample(s)
	}
	key := onDevice{"/run/ration/train/region", 0}
	expect.Equal(t, len(m.history[key]), maxHistory, "points are kept")
	m.setSample(Sample{Time: noon})
	expect.Equal(t, len(m.history), 0, "histories of jobs that are gone")
	expect.Equal(t, m.sparkline([]float64{-1, 0, 0.5, 1, 2}), " ▁▅██")
}

// A job has rows for the devices that it has used, and one for those that it has not where it has
// used none.
func TestJobRows(t *testing.T) {
	s := example()
	s.Jobs = s.Jobs[slices.IndexFunc(s.Jobs, func(j machine.Job) bool { return j.Name == "train" }):][:1]
	rows := func(peaks ...uint64) (out []string) {
		s.Jobs[0].Devices = nil
		for i, peak := range peaks {
			s.Jobs[0].Devices = append(s.Jobs[0].Devices, machine.Device{Device: i, UUID: string(rune('a' + i)), Total: 80, Limited: true, Limit: 10, Peak: peak})
		}
		for _, r := range modelOf(s, 80, 24).jobRows() {
			out = append(out, r.dev.String())
		}
		return out
	}
	got := rows(0, 0, 3, 0, 5)
	expect.True(t, slices.Equal(got, []string{"2", "4"}), got)
	got = rows(0, 0, 0, 0)
	expect.True(t, slices.Equal(got, []string{"0-3"}), got)
}

// The details of a job of one GPU name no other.
func TestDetailsOfOneGPU(t *testing.T) {
	s := example()
	s.Jobs = []machine.Job{{Name: "one", Path: "/a", State: machine.Running, Devices: []machine.Device{{Limited: true, Limit: 2 << 30, Total: 80 << 30}, {Device: 1, Limited: true, Total: 80 << 30}}}}
	m := modelOf(s, 80, 40)
	expect.Equal(t, len(m.jobRows()), 1)
	press(t, m, "enter")
	got := text(m.Frame())
	expect.True(t, strings.Contains(got, "device 0") && !strings.Contains(got, "device 1"), got)
}

// What an agent has kept comes before the samples; that of another job of the same name does not.
func TestPast(t *testing.T) {
	value := func(n uint64) *uint64 { return &n }
	past := func(created time.Time) *node.History {
		h := &node.History{Jobs: []node.JobHistory{{Path: "/run/ration/train/region", Created: created}}}
		for i := range 180 {
			h.Times = append(h.Times, noon.Add(time.Duration(i-180)*5*time.Second))
			used, compute := value(uint64(i)<<20), value(uint64(i)*uint64(time.Second))
			if i < 10 || i >= 100 && i < 110 {
				used = nil
			}
			h.Jobs[0].Used, h.Jobs[0].Compute = append(h.Jobs[0].Used, used), append(h.Jobs[0].Compute, compute)
		}
		return h
	}
	s := example()
	s.Jobs = s.Jobs[slices.IndexFunc(s.Jobs, func(j machine.Job) bool { return j.Name == "train" }):]
	s.Jobs[0].Created, s.Past = noon, past(noon)
	m := modelOf(s, 80, 24)
	all := m.history[onDevice{s.Jobs[0].Path, 0}]
	expect.Must(t, len(all) == 161 && all[0].used == 10<<20 && all[1].percent == 20 && all[160].used == s.Jobs[0].Devices[0].Used && all[160].time.Equal(s.Time), len(all), "points", all)
	// 15 minutes in 40 cells are 30 s each: the gap of 55 s is one of 1 cell or 2.
	cells := m.cells(all, func(p point) float64 { return float64(p.used >> 20) }, 40)
	blank := 0
	for i, v := range cells {
		if v < 0 {
			blank++
		} else if i > 0 && i < len(cells)-1 && v < cells[i-1] {
			t.Errorf("cell %d is %v, after %v", i, v, cells[i-1])
		}
	}
	expect.True(t, len(cells) >= 20 && len(cells) <= 40 && blank >= 1 && blank <= 2, len(cells), "cells", blank, "of them blank", cells)
	s.Past = past(noon.Add(1))
	expect.Equal(t, len(modelOf(s, 80, 24).history[onDevice{s.Jobs[0].Path, 0}]), 1, "points of another job")
}

// A value fills the cells until the next, if that is near; the cells of one frame are those of the
// next.
func TestCells(t *testing.T) {
	m := modelOf(example(), 80, 24)
	m.interval = time.Second
	var points []point
	for _, second := range []int{0, 1, 5, 6, 30} {
		points = append(points, point{noon.Add(time.Duration(second) * time.Second), uint64(second + 1), -1})
	}
	used := func(p point) float64 { return float64(p.used) }
	want := append([]float64{1, 2, 2, 2, 2, 6, 7}, make([]float64, 24)...)
	for i := 7; i < 30; i++ {
		want[i] = -1
	}
	want[30] = 31
	got := m.cells(points, used, 40)
	expect.True(t, slices.Equal(got, want), got)
	before := m.cells(points, used, 10)
	points = append(points, point{noon.Add(31 * time.Second), 40, -1})
	after := m.cells(points, used, 10)
	expect.True(t, slices.Equal(before[:6], after[:6]) && len(after) <= 10, before, "and then", after)
}

// The wheel and a click do what keys do.
func TestMouse(t *testing.T) {
	m := modelOf(wholeMachine(), 80, 24)
	at := func(what string) int {
		for i, l := range strings.Split(text(m.Frame()), "\n") {
			if strings.Contains(l, what) {
				return i
			}
		}
		t.Fatalf("%q is not shown:\n%s", what, text(m.Frame()))
		return 0
	}
	click := func(y int) { m.Update(tea.MouseClickMsg{X: 3, Y: y, Button: tea.MouseLeft}) }
	click(at(" train "))
	expect.Must(t, m.job.id == "/run/ration/train/region" && !m.allJobs, "selected is", m.job.id)
	click(at(" 4712 "))
	r := m.selectedProcess()
	expect.True(t, m.focus == processesTable && r != nil && r.PID == 4712, "selected is", r)
	m.Update(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	r = m.selectedProcess()
	expect.True(t, r != nil && r.PID != 4712, "the wheel does not move")
	click(at(" train "))
	click(at(" train "))
	_, is := m.page.(*details)
	expect.True(t, is, "a click on the selected job does not show its details")
	press(t, m, "esc", "u")
	click(at("eve"))
	click(at("eve"))
	expect.Equal(t, m.user, "eve", "user is")
	click(1 << 20)
	click(-1)
	press(t, m, "esc", "/", "text:dev") // what is selected stays while a question is open
	before, row := m.job, at(" train ")
	click(row)
	m.Update(tea.MouseWheelMsg{Button: tea.MouseWheelUp}) // the last is selected
	expect.Equal(t, m.job, before, "the mouse selects beneath a prompt")
	press(t, m, "esc")
	expect.True(t, m.View().MouseMode != tea.MouseModeNone, "the mouse is not asked for")
	press(t, m, "m")
	expect.Equal(t, m.View().MouseMode, tea.MouseModeNone, "m does not leave the mouse to the terminal")
}

// Refusals are grouped by the process that asked.
func TestAskers(t *testing.T) {
	f := func(pid int, asked uint64) machine.Refusal {
		return machine.Refusal{PID: pid, Asked: asked, Limit: gib}
	}
	var got []string
	for _, a := range askers([]machine.Refusal{f(1, 5), f(2, 7), f(1, 5), f(2, 8), f(1, 5)}) {
		got = append(got, fmt.Sprint(a.latest.PID, " ", a.latest.Asked, " ", a.times, " ", a.same))
	}
	want := "1 5 3 true, 2 7 2 false"
	expect.Equal(t, strings.Join(got, ", "), want, got)
}

// Help lists every key that does something.
func TestHelpIsComplete(t *testing.T) {
	m := modelOf(example(), 120, 100)
	press(t, m, "?")
	frame := text(m.Frame())
	for i, b := range overviewKeys() {
		if b.help == "" { // help lists it with the next
			b = overviewKeys()[i+1]
		}
		expect.True(t, b.help != "" && strings.Contains(frame, b.help), b.keys, "is not in", frame)
	}
}

// Settings are saved, and a file that is damaged or of another version does no harm. What is
// shown is not saved: the next ration top begins with everything that runs.
func TestSettings(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "new", "config"))
	path := SettingsPath()
	expect.Must(t, path != "", "a folder of one's own is not taken")
	m := modelOf(example(), 80, 24)
	press(t, m, "s", "r", "t", "m", "c", "down", "space", "esc", "/", "text:tr", "enter", "e", "tab", "s", "s")
	expect.OK(t, m.Settings.Save(path))
	got := fmt.Sprintf("%+v", LoadSettings(path))
	want := "{Jobs:{Sort:mem Reverse:true Hidden:[STATE]} Processes:{Sort:cpu Reverse:false Hidden:[]} Tree:true NoMouse:true}"
	expect.Equal(t, got, want)
	for _, text := range []string{"", "{", `{"jobs":{"sort":"colour"},"processes":7}`, "null", `{"jobs":{"sort":"\u001b[2J"}}`} {
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
		s := LoadSettings(path)
		expect.True(t, s.Jobs.Sort == "busy" && s.Processes.Sort == "mem", text, s)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "top-*"))
	expect.True(t, len(left) == 0, "left behind", left)
	// A folder that others can write, or that is another user's, is not used.
	shared := t.TempDir()
	expect.OK(t, os.Chmod(shared, 0o777))
	t.Setenv("XDG_CONFIG_HOME", shared)
	expect.Equal(t, SettingsPath(), "", "settings in")
	if os.Geteuid() != 0 {
		return
	}
	other := t.TempDir()
	expect.OK(t, os.Chown(other, 65534, 65534))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(other, ".config"))
	expect.Equal(t, SettingsPath(), "", "root's settings, in a folder of another user")
}

func BenchmarkUpdateAndFrame(b *testing.B) {
	s := many(200, 8)
	m := modelOf(s, 120, 40)
	for b.Loop() {
		m.Update(s)
		_ = m.Frame()
	}
}

// Events that say they are still to come, as a tenant can write, do not go before those of others.
func TestEventsOfTomorrow(t *testing.T) {
	s := example()
	evil := machine.Job{Name: "evil", Path: "/tmp/evil/region", State: machine.Running}
	for i := range 50 {
		evil.Deaths = append(evil.Deaths, machine.Death{Time: noon.Add(24*time.Hour + time.Duration(i)), PID: i + 1})
	}
	s.Jobs = append(s.Jobs, evil)
	events := modelOf(s, 80, 24).events()
	expect.True(t, len(events) == 53 && !strings.Contains(events[0].text, "evil") && events[0].refusal && strings.Contains(events[3].text, "evil"),
		len(events), "events, the first is", events[0].text)
}

// Refusals by the policy are events, one line for each user that the filter chooses. It counts those in the same words.
func TestDenied(t *testing.T) {
	s := example()
	s.Jobs = nil
	s.Denied = []machine.Denied{
		{Time: ago(time.Hour), UID: 4002, User: "ben", Count: 5, Text: "no room for 100 GiB on GPU 0 (try again later)"},
		{Time: ago(time.Minute), UID: 4003, User: "carl", Count: 1, Text: "no room for 9 GiB on GPU 1"},
		{Time: ago(time.Minute), UID: 4002, User: "ben", Count: 6, Text: "no room for 80 GiB on GPU 0 (try again later)"},
		{Time: ago(time.Second), UID: 4002, User: "ben", Count: 7, Text: "no room for 80 GiB on GPU 0 (try again later)",
			Holders: []machine.DeniedHolder{{UID: 4001, User: "anna", Held: 100 * gib}}},
	}
	m := modelOf(s, 120, 40)
	events := m.events()
	expect.Must(t, len(events) == 2, events)
	expect.True(t, strings.HasPrefix(events[0].text, "the policy refused ben a ration: no room for 80 GiB on GPU 0; the largest rations there: anna 100 GiB") &&
		strings.HasSuffix(events[0].text, m.theme.times+"2"), events[0].text)
	expect.True(t, strings.HasPrefix(events[1].text, "the policy refused carl a ration: no room for 9 GiB on GPU 1") && events[1].refusal, events[1].text)
	expect.True(t, strings.Contains(text(m.Frame()), "the policy refused ben a ration"), text(m.Frame()))
	// They count, also those of a user without a job.
	refused := map[string]uint64{}
	for _, u := range m.users() {
		refused[u.name] = u.refused
	}
	expect.True(t, refused["ben"] == 7 && refused["carl"] == 1 && refused[""] == 8, refused)
	ben := machine.Job{Path: job.OfUserPath(4002), UID: 4002, Devices: []machine.Device{{Refused: 2}}}
	row := jobRow{job: &ben, dev: node.DeviceRange{Device: ben.Devices[0]}, first: true}
	expect.Equal(t, m.refused(row), uint64(9))
	row.first = false
	expect.Equal(t, m.refused(row), uint64(2))
	s.Jobs = []machine.Job{ben}
	m = modelOf(s, 120, 40)
	press(t, m, "enter")
	expect.True(t, strings.Contains(text(m.Frame()), "the policy refused ben a ration") && !strings.Contains(text(m.Frame()), "refused carl"), text(m.Frame()))
	// The details have as many as the list, and each in its words.
	expect.True(t, strings.Contains(text(m.Frame()), "2 requests refused, 7 rations refused by the policy") && strings.Contains(text(m.Frame()), "no room for 100 GiB"), text(m.Frame()))
	m = modelOf(s, 120, 40)
	m.user = "carl"
	expect.True(t, len(m.events()) == 1 && strings.Contains(m.events()[0].text, "carl"), m.events())
}

// The limit of a job beside the policy in force is not handed out to its user.
func TestUsersBesidePolicy(t *testing.T) {
	defer func(was func() func(*machine.Job) bool) { besidePolicy = was }(besidePolicy)
	besidePolicy = func() func(*machine.Job) bool { return func(j *machine.Job) bool { return j.Name == "beside" } }
	var s Sample
	for _, name := range []string{"beside", "ration"} {
		s.Jobs = append(s.Jobs, machine.Job{Name: name, Owner: "anna", Devices: []machine.Device{{Total: 10 * gib, Used: gib, Limited: true, Limit: 8 * gib}}})
	}
	for _, u := range modelOf(s, 120, 40).users() {
		expect.True(t, u.limits == 8*gib && u.held == 2*gib, u)
	}
}

// Without an agent, what is known of a device are the limits of this user's jobs, and the frame says so.
func TestOwnLimitsOnly(t *testing.T) {
	s := wholeMachine()
	expect.True(t, strings.Contains(text(modelOf(s, 120, 40).Frame()), "HANDED OUT"), "want HANDED OUT")
	s.Mine = true
	m := modelOf(s, 120, 40)
	expect.True(t, strings.Contains(text(m.Frame()), "YOURS") && !strings.Contains(text(m.Frame()), "HANDED OUT"), text(m.Frame()))
	expect.True(t, strings.HasSuffix(m.gpuSum(s.Devices), "yours"), m.gpuSum(s.Devices))
}

// A GPU that has failed is not shown as empty, in the table and in the grid.
func TestFailedGPU(t *testing.T) {
	s := example()
	s.Devices = []machine.GPU{{Device: 0, Total: 8 << 30, Used: 1 << 30}, {Device: 1, Failed: true, Rations: 4 << 30, Jobs: 1}}
	for _, height := range []int{40, 9} {
		text := frameOf(t, s, 100, height, nil)
		expect.True(t, strings.Contains(text, "failed") && !strings.Contains(text, "! 4G"), height, text)
	}
}

// A job that the driver counts more for than its limit is red, also if its own accounts are empty.
func TestOverLimit(t *testing.T) {
	s := example()
	s.Jobs = []machine.Job{{Name: "beyond", Path: "/a", State: machine.Running, Devices: []machine.Device{{Limited: true, Limit: 2 << 30}}}}
	before := modelOf(s, 80, 24).Frame()
	s.Jobs[0].Devices[0].Driver = 12 << 30
	m := modelOf(s, 80, 24)
	red := m.theme.bad.Render("beyond")
	expect.True(t, !strings.Contains(before, red) && strings.Contains(m.Frame(), red), "no", red, "in", m.Frame())
	press(t, m, "enter")
	expect.True(t, strings.Contains(text(m.Frame()), "over its limit by 10 GiB: the driver counts 12 GiB"), text(m.Frame()))
}
