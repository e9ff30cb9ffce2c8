package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/template"

	"ration/check/expect"
	"ration/internal/agent"
	"ration/internal/job"
	"ration/internal/node"
	"ration/machine"
)

// A device that is not there has no line, and a limit for all is one line, before anybody knows
// which devices there are.
func TestPrintDevices(t *testing.T) {
	var all, none []machine.Device
	for i := range 16 {
		all = append(all, machine.Device{Device: i, Limited: true, Limit: 1 << 30})
		none = append(none, machine.Device{Device: i})
	}
	used := append([]machine.Device(nil), all...)
	used[2].Used, used[2].Peak = 1<<20, 1<<20
	one := []machine.Device{{Limited: true, Limit: 1 << 30, Total: 8 << 30}, {Device: 1, Limited: true, Total: 8 << 30}}
	for name, c := range map[string]struct {
		devices []machine.Device
		want    string
	}{
		"on one of two":     {one, "  device 0  0 B of 1 GiB (0 %), peak 0 B\n"},
		"a limit for all":   {all, "  devices 0-15  0 B of 1 GiB (0 %), peak 0 B\n"},
		"no limit":          {none, "  no limits, and nothing was ever used\n"},
		"one in use":        {used, "  devices 0-1  0 B of 1 GiB (0 %), peak 0 B\n  device 2  1 MiB of 1 GiB (0 %), peak 1 MiB\n  devices 3-15  0 B of 1 GiB (0 %), peak 0 B\n"},
		"one that is there": {[]machine.Device{{Total: 1 << 30}}, "  device 0  0 B used, no limit, peak 0 B\n"},
	} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out)}
		a.printDevices(&machine.Job{Devices: c.devices})
		expect.Equal(t, out.String(), c.want, name)
	}
}

// A GPU that has failed has no zeros, and says what is handed out there; the lines of ten and more GPUs are aligned.
func TestPrintFailedGPU(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: newTerminal(&out), totals: &agent.Totals{}}
	a.printGPUs([]machine.GPU{{Device: 0, Name: "H200", Total: 8 << 30, Used: 2 << 30}, {Device: 1, Failed: true}, {Device: 12, Total: 8 << 30, Failed: true, Rations: 4 << 30, Jobs: 1}})
	expect.Equal(t, out.String(), "GPU 0   H200  2 GiB of 8 GiB used\nGPU 1   does not answer\nGPU 12  does not answer, 4 GiB handed out to 1 job of yours\n")
}

// However long the text and however small the terminal, the first line stays, and no line is
// written in the last row, from which it would scroll.
func TestRedraw(t *testing.T) {
	for _, height := range []int{1, 2, 3, 24} {
		for _, lines := range []int{0, 1, 22, 23, 24, 100} {
			var out bytes.Buffer
			redraw(&out, []byte(strings.Repeat(strings.Repeat("x", 500)+"\n", lines)), 1, height, "12:00:00")
			got := strings.Split(strings.TrimPrefix(out.String(), "\x1b[H\x1b[?7l"), "\x1b[K\n")
			expect.True(t, got[0] == "12:00:00" && got[len(got)-1] == "\x1b[J\x1b[?7h", lines, "lines in", height, got)
			rows := len(got) - 1
			expect.True(t, rows <= max(1, height-1), lines, "lines in", height, "wrote", rows)
			expect.True(t, height != 24 || lines != 100 || got[len(got)-2] == "… 79 more lines", got[len(got)-2])
		}
	}
}

// A path that another user chose is one line, and one word of a shell, whatever is in it: what is
// printed may be the arguments of another command.
func TestPrintEachIsOneLine(t *testing.T) {
	t.Setenv("RATION_DIR", "/jobs")
	jobs := []machine.Job{{Name: "x", Path: "/tmp/x\n/jobs/victim/region"}, {Name: "y", Path: "/tmp/y /jobs/victim/region"}, {Name: "z", Path: "/jobs/z/region"}}
	jobs[0].Error = "opening /tmp/x\n/jobs/victim/region"
	format, err := parseJobTemplate(`{{.Path}}\t{{.Error}}`)
	expect.OK(t, err)
	for name, c := range map[string]struct {
		format *template.Template
		want   string
	}{
		"quiet":    {nil, "/tmp/x?/jobs/victim/region\n/tmp/y?/jobs/victim/region\nz\n"},
		"a format": {format, "/tmp/x?/jobs/victim/region\topening /tmp/x?/jobs/victim/region\n/tmp/y /jobs/victim/region\t\n/jobs/z/region\t\n"},
	} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out)}
		err := a.printEach(jobs, c.format)
		expect.True(t, err == nil && out.String() == c.want, name, out.String(), err, c.want)
	}
}

// Below the jobs of one user, or one job, only what is about them is said.
func TestOnlySelected(t *testing.T) {
	all := func() *machine.Machine {
		return &machine.Machine{
			Jobs:    []machine.Job{{Name: "train", Path: "/a/train/region", Owner: "alice", UID: 4001}},
			Outside: []machine.Outside{{PID: 1, UID: 4001, User: "alice"}, {PID: 2, UID: 4002, User: "bob"}},
			Denied:  []machine.Denied{{UID: 4001, User: "alice"}, {UID: 4002, User: "bob"}},
			Waiting: []machine.Waiting{{Path: "/a/late/region"}},
			Findings: []machine.Finding{{Kind: machine.Overbooked}, {Kind: machine.Unanswering, Device: -1}, {Kind: machine.OutsideJobs, PID: 1}, {Kind: machine.OutsideJobs, PID: 2}, {Kind: machine.OverLimit, Path: "/a/train/region"},
				{Kind: machine.OverLimit, Path: "/b/region"}, {Kind: machine.PolicyRefused, Path: job.OfUserPath(4001)}, {Kind: machine.PolicyRefused, Path: job.OfUserPath(4002)}},
		}
	}
	for name, c := range map[string]struct {
		s    node.Selection
		want string
	}{
		"a user":   {node.Selection{User: "alice"}, "overbooked not-answering outside over-limit policy-refused"},
		"a name":   {node.Selection{}, "overbooked not-answering over-limit"},
		"a filter": {node.Selection{User: "alice", Filters: []string{"state=running"}}, "overbooked not-answering over-limit"},
	} {
		m := all()
		onlySelected(m, c.s)
		var kinds []string
		for _, f := range m.Findings {
			kinds = append(kinds, f.Kind)
			expect.True(t, f.PID != 2 && f.Path != "/b/region" && f.Path != job.OfUserPath(4002), name, f)
		}
		expect.Equal(t, strings.Join(kinds, " "), c.want, name)
		expect.True(t, len(m.Outside) == len(m.Denied) && len(m.Outside) < 2, name, m.Outside, m.Denied)
	}
}

// A job that waits is shown: then it is not said that none runs.
func TestPrintHidden(t *testing.T) {
	for name, c := range map[string]struct {
		m    machine.Machine
		want string
	}{
		"nothing is shown": {machine.Machine{Folder: "/jobs", Hidden: 1}, "No job runs in /jobs. 1 job has ended (ration ps -a shows it)\n"},
		"one runs":         {machine.Machine{Hidden: 2, Jobs: make([]machine.Job, 1)}, "\n2 jobs have ended (ration ps -a shows them)\n"},
		"one waits":        {machine.Machine{Hidden: 2, Waiting: make([]machine.Waiting, 1)}, "\n2 jobs have ended (ration ps -a shows them)\n"},
	} {
		var out bytes.Buffer
		(&app{out: newTerminal(&out)}).printHidden(&c.m, node.Selection{})
		expect.Equal(t, out.String(), c.want, name)
	}
}
