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
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"ration/check/expect"
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

func ago(d time.Duration) time.Time { return noon.Add(-d) }

func process(slot, pid int, user, name string, joined time.Duration, holdings ...machine.Holding) machine.Process {
	return machine.Process{Slot: slot, Verified: true, PID: pid, HostPID: pid, Local: machine.ProcessID{PID: pid, Start: 1}, User: user, Name: name, State: machine.Live, Joined: ago(joined), Holdings: holdings}
}

func holds(device int, context, data uint64) machine.Holding {
	total := context + data
	return machine.Holding{Device: device, Total: total, Context: context, Data: data, Peak: total + total/8}
}

// sizes are the sizes that every page is tried at.
var sizes = [][2]int{{80, 24}, {120, 40}, {40, 10}}

func TestFrames(t *testing.T) {
	t.Setenv(job.EnvFolder, "/run/ration")
	for _, tt := range []struct {
		name   string
		sample Sample
		keys   []string
	}{
		{"machine", wholeMachine(), nil},
		{"no-driver", example(), nil},
		{"filter", wholeMachine(), []string{"/", "text:TRAIN"}},
		{"filter-nothing", wholeMachine(), []string{"/", "text:nowhere", "enter"}},
		{"tree", example(), []string{"t"}},
		{"details", computing(false), []string{"enter"}},
		{"details-ended", example(), []string{"e", "end", "enter"}},
		{"question", wholeMachine(), []string{"tab", "k", "right", "right"}},
		{"limit", wholeMachine(), []string{"l", "text:20g"}},
		{"limit-error", wholeMachine(), []string{"l", "text:20 pounds", "enter"}},
		{"claim", example(), []string{"tab", "end", "k"}},
		{"nothing-runs", Sample{Time: noon, Machine: machine.Machine{Jobs: example().Jobs[:1]}}, nil},
		{"none", Sample{Time: noon}, nil},
		{"users", wholeMachine(), []string{"u", "down", "down"}},
		{"columns", example(), []string{"c", "down", "space"}},
		{"findings", wholeMachine(), []string{"f"}},
		{"help", example(), []string{"?"}},
		{"many", many(12, 40), []string{"down", "down", "down", "down", "down", "tab", "pgdown"}},
		{"compute", computing(true), nil},
		{"not-enforced", computing(false), []string{"down"}},
		{"asleep", asleep(), nil},
		{"asleep-details", asleep(), []string{"down", "down", "enter"}},
		{"cannot-sleep-details", asleep(), []string{"enter"}},
		{"paused", example(), []string{"space"}},
		{"ended-by-name", example(), []string{"e", "s", "s"}},
		{"error", Sample{Time: noon, Err: errors.New("listing jobs: permission denied (name another folder in RATION_DIR)")}, nil},
	} {
		for _, size := range sizes {
			name := fmt.Sprintf("%s-%dx%d", tt.name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				golden(t, name+".txt", frameOf(t, tt.sample, size[0], size[1], nil, tt.keys...))
			})
		}
	}
	for _, tt := range []struct {
		name          string
		width, height int
		sample        Sample
		keys          []string
	}{
		{"200x50", 200, 50, wholeMachine(), nil},
		{"60x16", 60, 16, wholeMachine(), nil},
		{"24x5", 24, 5, wholeMachine(), nil},
		{"10x2", 10, 2, wholeMachine(), nil},
		{"path", 80, 10, onlyPath(), nil},
		{"16-gpus-80x24", 80, 24, sixteen(), nil},
		{"16-gpus-60x24", 60, 24, sixteen(), nil},
		{"16-gpus-40x10", 40, 10, sixteen(), nil},
		{"16-gpus-page-80x24", 80, 24, sixteen(), []string{"g"}},
		{"16-gpus-page-40x10", 40, 10, sixteen(), []string{"g", "end"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			golden(t, tt.name+".txt", frameOf(t, tt.sample, tt.width, tt.height, nil, tt.keys...))
		})
	}
	t.Run("ascii", func(t *testing.T) {
		golden(t, "ascii.txt", frameOf(t, wholeMachine(), 80, 24, []string{"LANG=C"}, "t"))
		golden(t, "ascii-details.txt", frameOf(t, computing(true), 80, 24, []string{"LANG=C"}, "enter"))
	})
}

// frameOf returns the frame after keys, and checks that it fits.
func frameOf(t *testing.T, s Sample, width, height int, environ []string, keys ...string) string {
	t.Helper()
	m := modelOf(s, width, height, environ...)
	m.actions = &fakeActions{}
	addPast(m, s)
	press(t, m, keys...)
	frame := m.Frame()
	fits(t, frame, width, height)
	return text(frame)
}

// addPast gives jobs a history.
func addPast(m *Model, now Sample) {
	m.history = map[onDevice][]point{}
	for i := range 40 {
		s := Sample{Time: noon.Add(time.Duration(i-40) * time.Second)}
		for _, j := range now.Jobs {
			j.Devices = append([]machine.Device(nil), j.Devices...)
			for d := range j.Devices {
				j.Devices[d].Used = j.Devices[d].Used / 40 * uint64(i)
			}
			s.Jobs = append(s.Jobs, j)
		}
		m.addHistory(s)
	}
	m.addHistory(now)
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
	expect.True(t, len(lines) <= height, len(lines), "lines on a terminal with", height)
	for i, line := range lines {
		n := ansi.StringWidth(line)
		expect.True(t, n <= width, "line", i+1, "has", n, "columns on a terminal with", width, line)
	}
}

// TestEverySize checks that frames fit terminals of many sizes.
func TestEverySize(t *testing.T) {
	for _, s := range []Sample{wholeMachine(), computing(false), sixteen(), {Time: noon}} {
		for _, height := range []int{1, 2, 3, 4, 5, 8, 13, 15, 23, 44} {
			for _, width := range []int{1, 2, 5, 9, 17, 30, 39, 63, 81, 133, 220} {
				for _, keys := range [][]string{nil, {"?"}, {"tab", "pgdown", "pgdown"}, {"enter"}, {"u"}, {"c"}, {"f"}, {"/", "text:a"}, {"l", "text:x", "enter"}, {"tab", "k"}} {
					m := modelOf(s, width, height)
					m.actions = &fakeActions{}
					press(t, m, keys...)
					fits(t, m.Frame(), width, height)
				}
			}
		}
	}
}

// What tenants chose moves no cursor, on no page.
func TestEscaped(t *testing.T) {
	const bad = "a\x1b[2J\x1b]0;b\a\u202e\r"
	s := wholeMachine()
	s.Folder, s.Devices[0].Name = bad, bad
	for i := range s.Jobs {
		j := &s.Jobs[i]
		j.Name, j.Owner, j.Launcher, j.Command = bad+j.Name, bad, "b"+bad, []string{bad}
		if j.Error != "" {
			j.Error = bad
		}
		for p := range j.Processes {
			j.Processes[p].Name, j.Processes[p].User, j.Processes[p].Container = bad, bad, bad
		}
		for d := range j.Deaths {
			j.Deaths[d].Name = bad
		}
	}
	for i := range s.Findings {
		s.Findings[i].Text, s.Findings[i].Remedy = bad, bad
	}
	s.Outside[0].User, s.Outside[0].Container = bad, bad
	style := regexp.MustCompile("\x1b\\[[0-9;]*m")
	for _, keys := range [][]string{nil, {"t"}, {"e"}, {"enter"}, {"end", "enter"}, {"u"}, {"u", "down", "enter"}, {"f"}, {"tab", "k"}, {"tab", "k", "y"}, {"l"},
		{"l", "text:" + bad, "enter"}, {"/", "text:" + bad}, {"/", "text:" + bad, "enter"}} {
		m := modelOf(s, 120, 40)
		m.actions = &fakeActions{}
		press(t, m, keys...)
		for _, r := range style.ReplaceAllString(m.Frame(), "") {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q: %q in the frame", keys, r)
				break
			}
		}
	}
}

func TestColours(t *testing.T) {
	frame := modelOf(wholeMachine(), 80, 24).Frame()
	golden(t, "colours.txt", strings.ReplaceAll(frame, "\x1b", "ESC")+"\n")
	colour := regexp.MustCompile("\x1b\\[[0-9;]*[349][0-7]")
	expect.True(t, colour.MatchString(frame), "no colours where there may be some")
	plain := modelOf(wholeMachine(), 80, 24, "NO_COLOR=1").Frame()
	expect.Equal(t, colour.FindString(plain), "", "colour under NO_COLOR")
	expect.Equal(t, text(plain), text(frame), "NO_COLOR changes more than colours")
	for _, r := range modelOf(wholeMachine(), 200, 50, "LANG=", "LC_ALL=C").Frame() {
		expect.Must(t, r <= 126, r, "in a frame for a terminal that knows ASCII")
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		expect.OK(t, os.MkdirAll("testdata", 0o755))
		expect.OK(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	expect.OK(t, err, "(go test ./internal/tui -update writes it)")
	expect.Equal(t, got, string(want), name, want)
}
