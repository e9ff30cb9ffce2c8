package tui

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"ration/internal/job"
	"ration/machine"
)

var update = flag.Bool("update", false, "write the golden frames")

const (
	mib = 1 << 20
	gib = 1 << 30
)

// noon is the time of all samples.
var noon = time.Date(2026, 8, 14, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) int64 { return noon.Add(-d).UnixNano() }

func process(slot, pid int, user, name string, joined time.Duration, holdings ...machine.Holding) machine.Process {
	return machine.Process{Slot: slot, Verified: true, PID: pid, HostPID: pid, User: user, Name: name, State: machine.Live, Joined: ago(joined), Holdings: holdings}
}

func holds(device int, context, data uint64) machine.Holding {
	total := context + data
	return machine.Holding{Device: device, Total: total, Context: context, Data: data, Peak: total + total/8}
}

// example is a sample with a job at work, one whose limit was lowered, one without
// limits, and one that cannot be read.
func example() Sample {
	train := machine.Job{Name: "train", Path: "/run/ration/train/region",
		Devices: []machine.Device{{Device: 0, Limited: true, Limit: 10 * gib, Used: 6 * gib, Peak: 9 * gib, Total: 80 * gib, Refused: 4}},
		Processes: []machine.Process{
			process(0, 4711, "dev", "python train.py", time.Hour, holds(0, 518*mib, 2*gib)),
			process(1, 4712, "dev", "python train.py", 50*time.Minute, holds(0, 518*mib, 1*gib)),
			process(2, 4720, "dev", "loader", 90*time.Second, holds(0, 0, 256*mib)),
			process(3, 9, "ops", "eval\x1b[2J", 40*time.Hour, holds(0, 518*mib, 900*mib)),
		},
		Reaped: []machine.Process{process(4, 4713, "dev", "python train.py", time.Hour, holds(0, 518*mib, 1*gib))},
		Refusals: []machine.Refusal{
			{Time: ago(2 * time.Second), Slot: 0, PID: 4711, Asked: 4*gib + 512*mib, Held: 6 * gib, Limit: 10 * gib, Own: 2566 * mib,
				Top: []machine.Holder{{PID: 4711, Bytes: 2566 * mib}, {PID: 4712, Bytes: 1542 * mib}, {PID: 9, Bytes: 1418 * mib}}},
			{Time: ago(3 * time.Second), Slot: 0, PID: 4711, Asked: 4*gib + 512*mib, Held: 6 * gib, Limit: 10 * gib},
			{Time: ago(10 * time.Minute), Slot: 7, PID: 4650, Asked: 8 * gib, Held: 3 * gib, Limit: 10 * gib,
				Top: []machine.Holder{{PID: 4712, Bytes: 3 * gib}}},
		}}
	train.Processes[2].State = machine.Stopped
	train.Processes[3].Verified = false // only its job says that it is that one
	serve := machine.Job{Name: "serve", Path: "/run/ration/serve/region",
		Devices: []machine.Device{
			{Device: 0, Limited: true, Limit: 4 * gib, Used: 6 * gib, Peak: 7 * gib},
			{Device: 1, Limited: true, Limit: 20 * gib, Used: 17 * gib, Peak: 17 * gib},
		},
		Processes: []machine.Process{process(0, 31, "root", "tritonserver", 72*time.Hour, holds(0, 518*mib, 5*gib), holds(1, 518*mib, 16*gib))}}
	serve.Processes[0].HostPID = 2201931
	free := machine.Job{Name: "notebook-of-somebody-with-a-long-name", Path: "/run/ration/notebook/region",
		Devices:   []machine.Device{{Device: 0, Used: 20 * mib, Peak: 30 * gib, Total: 80 * gib}},
		Processes: []machine.Process{process(0, 5000, "eve", "ipykernel_launcher", 5*time.Second, holds(0, 0, 20*mib))}}
	old := machine.Job{Name: "old", Path: "/run/ration/old/region", Error: "opening /run/ration/old/region: region of another version: it has version 7"}
	return Sample{Time: noon, Jobs: []machine.Job{train, serve, free, old}}
}

func modelOf(s Sample, width, height int, environ ...string) *Model {
	m := New(func() Sample { return s }, time.Second, NewTheme(append([]string{"LANG=C.UTF-8"}, environ...)))
	m.zone = time.UTC
	m.setSample(s)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

func press(m *Model, keys ...string) {
	for _, k := range keys {
		m.pressKey(k)
	}
}

// many is a sample with more jobs and processes than fit.
func many() Sample {
	s := Sample{Time: noon}
	for j := range 12 {
		status := machine.Job{Name: fmt.Sprintf("job-%d", j), Path: fmt.Sprintf("/run/ration/job-%d/region", j)}
		for d := range 2 {
			status.Devices = append(status.Devices, machine.Device{Device: d, Limited: true, Limit: 10 * gib, Used: uint64(j) * gib, Peak: 10 * gib})
		}
		for p := range 40 {
			status.Processes = append(status.Processes, process(p, 1000*j+p, "dev", fmt.Sprintf("worker-%d", p), time.Duration(p)*time.Minute, holds(0, 0, uint64(p)*mib)))
		}
		s.Jobs = append(s.Jobs, status)
	}
	return s
}

// onlyPath is a sample with a job without a name.
func onlyPath() Sample {
	s := example()
	s.Jobs = s.Jobs[:1]
	s.Jobs[0].Name, s.Jobs[0].Path = "", "/var/lib/somewhere/vgpu/5f0c/cache"
	return s
}

// computing is a sample with shares and caps: one job whose processes have their slices, one
// with a cap, and one whose share is not enforced.
func computing(enforced bool) Sample {
	s := example()
	has := func(p *machine.Process, state string, slice uint64, working int, waited uint64, t *machine.Time) {
		for i := range p.Holdings {
			p.Holdings[i].Compute = &machine.ProcessCompute{State: state, Slice: slice, Working: working, Waited: waited}
			p.Holdings[i].Time = t
		}
	}
	train, serve, free := &s.Jobs[0], &s.Jobs[1], &s.Jobs[2]
	train.Devices[0].Compute = &machine.Compute{Share: 30, Max: 50, Round: 20_000, Working: 2}
	for i := range train.Processes {
		has(&train.Processes[i], machine.Kept, 3000, i%2, uint64(i)*1200e6, &machine.Time{Percent: 12.4, Seconds: 5})
	}
	serve.Devices[1].Compute = &machine.Compute{Max: 5, Round: 20_000}
	free.Processes[0].Holdings[0].Time = &machine.Time{Percent: 42.6, Seconds: 6, About: true}
	if !enforced {
		serve.Devices[0].Compute = &machine.Compute{Share: 70, Round: 20_000}
		serve.Processes[0].Holdings[0].Compute = &machine.ProcessCompute{State: machine.NotEnforced, Reason: "the driver refused the time slice"}
	}
	return s
}

// Events of a job are still shown after it has ended.
func TestEventsOutlastJobs(t *testing.T) {
	m := modelOf(example(), 80, 24)
	s := example()
	s.Jobs = s.Jobs[1:]
	m.setSample(s)
	if frame := text(m.Frame()); !strings.Contains(frame, "(4711) asked for 4.5 GiB") || strings.Contains(frame, "train    ") {
		t.Errorf("got\n%s", frame)
	}
	if m.selected != s.Jobs[0].Path {
		t.Errorf("selected is %s, want the first that is left", m.selected)
	}
}

// TestUpdate checks ticks, pausing and the keys that quit.
func TestUpdate(t *testing.T) {
	m := modelOf(example(), 80, 24)
	if _, cmd := m.Update(tick{}); cmd == nil {
		t.Fatal("no command after a tick")
	} else if s, ok := cmd().(Sample); !ok || len(s.Jobs) != 4 {
		t.Errorf("got %v after a tick, want a sample", s)
	}
	m.Update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	m.Update(Sample{Time: noon.Add(time.Hour)})
	if !m.paused || len(m.sample.Jobs) != 4 {
		t.Error("a sample was shown while paused")
	}
	m.Update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	m.Update(Sample{Time: noon.Add(time.Hour)})
	if m.paused || len(m.sample.Jobs) != 0 {
		t.Error("not resumed")
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		if _, cmd := m.Update(key); cmd == nil {
			t.Errorf("%s does not quit", key)
		} else if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", key)
		}
	}
}

func TestFrames(t *testing.T) {
	for _, tt := range []struct {
		name          string
		width, height int
		sample        Sample
		environ       []string
		keys          []string
	}{
		{"80x24", 80, 24, example(), nil, nil},
		{"120x40", 120, 40, example(), nil, nil},
		{"200x50", 200, 50, example(), nil, []string{"a"}},
		{"ascii", 80, 24, example(), []string{"LANG=C"}, nil},
		{"second-job", 80, 24, example(), nil, []string{"down"}},
		{"all-by-name", 80, 24, example(), nil, []string{"a", "s", "s"}},
		{"by-joined-reversed", 80, 24, example(), nil, []string{"s", "s", "s", "r"}},
		{"unreadable", 80, 24, example(), nil, []string{"shift+tab"}},
		{"paused", 80, 24, example(), nil, []string{"space"}},
		{"help", 80, 24, example(), nil, []string{"?"}},
		{"many", 80, 24, many(), nil, []string{"down", "down", "down", "down", "down", "pgdown"}},
		{"compute", 80, 24, computing(true), nil, nil},
		{"compute-120x40", 120, 40, computing(true), nil, []string{"a"}},
		{"compute-ascii", 80, 24, computing(true), []string{"LANG=C"}, nil},
		{"compute-40x10", 40, 10, computing(true), nil, nil},
		{"not-enforced", 80, 24, computing(false), nil, []string{"down"}},
		{"60x16", 60, 16, example(), nil, nil},
		{"40x10", 40, 10, example(), nil, nil},
		{"24x5", 24, 5, example(), nil, nil},
		{"10x2", 10, 2, example(), nil, nil},
		{"path", 80, 10, onlyPath(), nil, nil},
		{"none", 80, 24, Sample{Time: noon}, nil, nil},
		{"error", 60, 10, Sample{Time: noon, Err: errors.New("listing jobs: permission denied (name another folder in RATION_DIR)")}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(job.EnvFolder, "/run/ration")
			m := modelOf(tt.sample, tt.width, tt.height, tt.environ...)
			press(m, tt.keys...)
			frame := m.Frame()
			fits(t, frame, tt.width, tt.height)
			golden(t, tt.name+".txt", text(frame))
		})
	}
}

// text returns a frame without styles and trailing blanks.
func text(frame string) string {
	var out strings.Builder
	for line := range strings.SplitSeq(ansi.Strip(frame), "\n") {
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// fits checks that a frame has no more lines and columns than its terminal.
func fits(t *testing.T, frame string, width, height int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if len(lines) > height {
		t.Errorf("%d lines on a terminal with %d", len(lines), height)
	}
	for i, line := range lines {
		if n := ansi.StringWidth(line); n > width {
			t.Errorf("line %d has %d columns on a terminal with %d: %q", i+1, n, width, line)
		}
	}
}

// TestEverySize checks that frames fit terminals of many sizes.
func TestEverySize(t *testing.T) {
	for _, s := range []Sample{example(), many(), computing(false), {Time: noon}} {
		for _, height := range []int{1, 2, 3, 4, 5, 7, 11, 13, 14, 15, 23, 44} {
			for _, width := range []int{1, 2, 5, 9, 17, 30, 39, 47, 63, 79, 81, 100, 133, 220} {
				for _, keys := range [][]string{nil, {"?"}, {"a", "pgdown", "pgdown"}} {
					m := modelOf(s, width, height)
					press(m, keys...)
					fits(t, m.Frame(), width, height)
				}
			}
		}
	}
}

func TestColours(t *testing.T) {
	frame := modelOf(example(), 80, 24).Frame()
	golden(t, "80x24-colours.txt", strings.ReplaceAll(frame, "\x1b", "ESC")+"\n")
	colour := regexp.MustCompile("\x1b\\[[0-9;]*[349][0-7]")
	if !colour.MatchString(frame) {
		t.Error("no colours where there may be some")
	}
	plain := modelOf(example(), 80, 24, "NO_COLOR=1").Frame()
	if at := colour.FindString(plain); at != "" {
		t.Errorf("colour %q under NO_COLOR", at)
	}
	if text(plain) != text(frame) {
		t.Error("NO_COLOR changes more than colours")
	}
	for _, r := range modelOf(example(), 200, 50, "LANG=", "LC_ALL=C").Frame() {
		if r > 126 {
			t.Fatalf("%q in a frame for a terminal that knows ASCII", r)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/tui -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}
