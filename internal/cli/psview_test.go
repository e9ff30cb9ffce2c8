package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/template"
	"time"

	"ration/machine"
)

// Processes are behind those that started them, and none is lost, whatever the parents are.
func TestTree(t *testing.T) {
	p := func(pid, parent int) machine.Process { return machine.Process{HostPID: pid, Parent: parent} }
	for name, c := range map[string]struct {
		all  []machine.Process
		want string
	}{
		"none":         {nil, ""},
		"a launcher":   {[]machine.Process{p(3, 1), p(1, 0), p(2, 1), p(4, 3), p(5, 0)}, "1.0 3.1 4.2 2.1 5.0"},
		"unknown":      {[]machine.Process{p(0, 0), p(0, 0), p(7, 99)}, "0.0 0.0 7.0"},
		"its own":      {[]machine.Process{p(7, 7)}, "7.0"},
		"in a circle":  {[]machine.Process{p(7, 8), p(8, 7)}, ""},
		"unseen child": {[]machine.Process{p(1, 0), p(0, 1)}, "1.0 0.1"},
	} {
		var got []string
		for p, depth := range tree(c.all) {
			got = append(got, fmt.Sprint(p.HostPID, ".", depth))
		}
		if len(got) != len(c.all) || c.want != "" && strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", name, got, c.want)
		}
	}
}

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
	for name, c := range map[string]struct {
		devices []machine.Device
		want    string
	}{
		"a limit for all":   {all, "  devices 0-15  0 B of 1 GiB (0 %), peak 0 B\n"},
		"no limit":          {none, "  no limits, and nothing was ever used\n"},
		"one in use":        {used, "  devices 0-1  0 B of 1 GiB (0 %), peak 0 B\n  device 2  1 MiB of 1 GiB (0 %), peak 1 MiB\n  devices 3-15  0 B of 1 GiB (0 %), peak 0 B\n"},
		"one that is there": {[]machine.Device{{Total: 1 << 30}}, "  device 0  0 B used, no limit, peak 0 B\n"},
	} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out)}
		a.printDevices(c.devices)
		if out.String() != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, out.String(), c.want)
		}
	}
}

func TestStateText(t *testing.T) {
	now := time.Unix(1e9, 0)
	at := func(ago time.Duration) (int64, time.Time) { t := now.Add(-ago); return t.UnixNano(), t }
	job := func(state string, ago time.Duration, exit *machine.Exit) (j machine.Job) {
		j.State, j.Exit = state, exit
		if state == machine.Ended {
			j.Ended, j.EndedAt = at(ago)
		} else {
			j.Started, j.StartedAt = at(ago)
		}
		return j
	}
	for want, j := range map[string]machine.Job{
		"running 119s":                      job(machine.Running, 119*time.Second, nil),
		"idle 3m":                           job(machine.Idle, 200*time.Second, nil),
		"starting 47h":                      job(machine.Starting, 47*time.Hour, nil),
		"running 0s":                        job(machine.Running, -time.Hour, nil), // a clock that was set back
		"ended 2d ago with exit status 0":   job(machine.Ended, 48*time.Hour, &machine.Exit{}),
		"ended 5s ago by signal 9 (killed)": job(machine.Ended, 5*time.Second, &machine.Exit{Status: 137, Signal: 9}),
		"ended":                             {State: machine.Ended},
		"running":                           {State: machine.Running},
	} {
		if got := stateText(j, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// However long the text and however small the terminal, the first line stays, and no line is
// written in the last row, from which it would scroll.
func TestRedraw(t *testing.T) {
	for _, height := range []int{1, 2, 3, 24} {
		for _, lines := range []int{0, 1, 22, 23, 24, 100} {
			var out bytes.Buffer
			redraw(&out, []byte(strings.Repeat(strings.Repeat("x", 500)+"\n", lines)), 1, height, "12:00:00")
			got := strings.Split(strings.TrimPrefix(out.String(), "\x1b[H\x1b[?7l"), "\x1b[K\n")
			if got[0] != "12:00:00" || got[len(got)-1] != "\x1b[J\x1b[?7h" {
				t.Errorf("%d lines in %d: %q", lines, height, got)
			}
			if rows := len(got) - 1; rows > max(1, height-1) {
				t.Errorf("%d lines in %d: wrote %d", lines, height, rows)
			}
			if height == 24 && lines == 100 && got[len(got)-2] != "… 79 more lines" {
				t.Errorf("got %q", got[len(got)-2])
			}
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
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		format *template.Template
		want   string
	}{
		"quiet":    {nil, "/tmp/x?/jobs/victim/region\n/tmp/y?/jobs/victim/region\nz\n"},
		"a format": {format, "/tmp/x?/jobs/victim/region\topening /tmp/x?/jobs/victim/region\n/tmp/y /jobs/victim/region\t\n/jobs/z/region\t\n"},
	} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out)}
		if err := a.printEach(jobs, c.format); err != nil || out.String() != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, out.String(), err, c.want)
		}
	}
}
