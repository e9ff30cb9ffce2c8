package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// tableJobs returns jobs of three users, whose sizes, ages and names are in different orders.
func tableJobs(n int) (jobs []machine.Job) {
	for i := range n {
		users := []string{"anna", "ben", "carl"}
		j := machine.Job{Name: fmt.Sprintf("fold%02d", i), Owner: users[i%3], UID: 4001 + i%3, State: machine.Running, Path: fmt.Sprintf("/run/x/%d/region", i),
			Command: []string{"python", "train.py", "--data", strings.Repeat("x", 200)}, Started: time.Now().Add(-time.Duration(i*7%n) * time.Hour)}
		j.Devices = []machine.Device{{Device: i % 2, Limited: true, Limit: 10 << 30, Used: uint64(i*11%n) << 28, Peak: 1 << 30, Total: 140 << 30}}
		jobs = append(jobs, j)
	}
	return jobs
}

// 60 jobs are 60 lines and a header, aligned, and none is wider than the terminal.
func TestJobTable(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: newTerminal(&out)}
	a.out.tty, a.out.width = true, 80
	a.printJobTable(tableJobs(60), nil, false)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	expect.Equal(t, len(lines), 61)
	column := strings.Index(lines[0], "GPU")
	expect.True(t, column > 0, lines[0])
	for i, line := range lines {
		expect.True(t, termtext.Width(line) <= 80, line)
		expect.True(t, i == 0 || line[column] == '0' || line[column] == '1', "not aligned: ", line)
	}
	expect.Equal(t, strings.Join(strings.Fields(lines[0]), " "), "JOB USER STATE AGE GPU USED LIMIT PROCS COMMAND")
	expect.True(t, strings.HasPrefix(lines[2], "  ben/fold01 "), lines[2])
	out.Reset()
	a.printJobTable(tableJobs(1), nil, true)
	expect.True(t, strings.Contains(out.String(), strings.Repeat("x", 200)) && strings.Contains(out.String(), "/run/x/0/region"), out.String())
}

// A long name is cut on a terminal only: grep finds the whole name.
func TestLongNames(t *testing.T) {
	jobs := tableJobs(1)
	jobs[0].Name = strings.Repeat("n", 60)
	for _, tty := range []bool{false, true} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out)}
		a.out.tty, a.out.width = tty, 200
		a.printJobTable(jobs, nil, false)
		expect.True(t, strings.Contains(out.String(), jobs[0].Name) == !tty, "on a terminal:", tty, out.String())
	}
}

func TestJobSelection(t *testing.T) {
	first := func(s node.Selection) string {
		expect.OK(t, s.Check())
		var names []string
		for _, j := range s.Apply(tableJobs(6)) {
			names = append(names, strings.TrimPrefix(j.Name, "fold0"))
		}
		return strings.Join(names, "")
	}
	expect.Equal(t, first(node.Selection{Sort: "name"}), "031425", "names begin with the user")
	for want, s := range map[string]node.Selection{
		"123450": {Sort: "mem"}, "031425": {Sort: "user"}, "024135": {Sort: "gpu"},
		"14": {User: "ben"}, "25": {Filters: []string{"user=carl"}}, "5": {Filters: []string{"user=carl", "name=*5"}}, "": {Filters: []string{"state=idle"}},
		"135": {Filters: []string{"gpu=1"}}, "1": {Filters: []string{"command=train.py", "gpu=1", "user=ben"}, Sort: "mem"}, "3": {Filters: []string{"name=ann?/fold03"}},
	} {
		expect.Equal(t, first(s), want, s)
	}
	asleep := node.Selection{Filters: []string{"state=asleep"}}
	expect.OK(t, asleep.Check())
	expect.True(t, asleep.Has(&machine.Job{State: machine.Running, Sleep: machine.Asleep}) && !asleep.Has(&machine.Job{State: machine.Running}), "not by the word of the table")
	expect.Equal(t, first(node.Selection{Sort: "age"}), "543210", "a job that began earlier comes first")
	for _, s := range []node.Selection{{Sort: "colour"}, {Filters: []string{"name"}}, {Filters: []string{"colour=red"}}, {Filters: []string{"state=dead"}}, {Filters: []string{"name=[", "x"}}} {
		expect.True(t, s.Check() != nil, s)
	}
}

// A limit and the devices of a job are one word each.
func TestJobCells(t *testing.T) {
	device := func(i int, limit uint64, used uint64) machine.Device {
		return machine.Device{Device: i, Limited: limit != 1, Limit: limit, Used: used, Peak: used, Total: 140 << 30}
	}
	for _, c := range []struct {
		devices    []machine.Device
		gpu, limit string
	}{
		{nil, "any", "none"},
		{[]machine.Device{{Device: 0, Limited: true, Limit: 4 << 30}, {Device: 1, Limited: true, Limit: 4 << 30}}, "any", "4G"},
		{[]machine.Device{device(0, 4<<30, 0), device(1, 4<<30, 0)}, "0-1", "2x4G"},
		{[]machine.Device{device(0, 4<<30, 0), device(1, 0, 0), device(3, 2<<30, 0)}, "0,3", "6G"},
		{[]machine.Device{device(0, 1, 5)}, "0", "none"},
		{[]machine.Device{device(0, 10<<30, 0), device(1, 1, 0), device(2, 1, 0)}, "0-2", "10G,none"},
		{[]machine.Device{device(0, 1, 0), device(1, 10<<30, 0), device(2, 10<<30, 0)}, "0-2", "20G,none"},
		{[]machine.Device{{Device: 0, Limited: true, Limit: 4 << 30}, {Device: 1}, {Device: 2}}, "any", "4G,none"},
		{[]machine.Device{{Device: 0, Limited: true, Limit: 4 << 30}, {Device: 1, Limited: true}}, "any", "4G"},
	} {
		j := machine.Job{Devices: c.devices}
		expect.Equal(t, node.GPUText(&j)+" "+jobLimitText(&j), c.gpu+" "+c.limit)
	}
}
