package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/limit"
	"ration/machine"
)

// What would have granted a request is a command that helps now: the limit of an ended job helps nobody.
func TestWhyNamesWhatHelps(t *testing.T) {
	for state, want := range map[string]string{machine.Running: "ration limit train 3g --device 0", machine.Ended: "ration run --mem 3g"} {
		var text bytes.Buffer
		a := &app{out: terminal{Writer: &text, tty: true, width: 200, writeErr: new(error)}}
		a.printRefusals([]machine.Job{{Name: "train", Path: "/jobs/train/region", State: state,
			Refusals: []machine.Refusal{{Asked: uint64(2 * limit.GiB), Held: uint64(limit.GiB), Limit: uint64(2 * limit.GiB)}}}}, 1, false)
		expect.True(t, strings.HasSuffix(text.String(), "The newest would have been granted with: "+want+"\n"), text.String())
	}
}

// What happened to a removed job is not mistaken for what happened to a later job of its name.
func TestWhyMarksEarlierJobs(t *testing.T) {
	now := time.Now()
	of := func(age time.Duration, state string, pid int) machine.Job {
		return machine.Job{Name: "train", Path: "/jobs/train/region", Created: now.Add(-age), State: state,
			Refusals: []machine.Refusal{{Time: now.Add(-age), PID: pid}}, Deaths: []machine.Death{{Time: now.Add(-age), PID: pid}}}
	}
	jobs := []machine.Job{of(time.Minute, machine.Running, 7), of(time.Hour, machine.Ended, 8)}
	out := explain(jobs, 9)
	for i, earlier := range []bool{false, true} {
		expect.Equal(t, out.Refusals[i].Earlier, earlier, "refusal", i)
		expect.Equal(t, out.Deaths[i].Earlier, earlier, "death", i)
	}
	var text bytes.Buffer
	a := &app{out: terminal{Writer: &text, width: 200, writeErr: new(error)}}
	a.printRefusals(jobs, 9, false)
	lines := strings.Split(text.String(), "\n")
	expect.True(t, strings.Contains(lines[0], "  train, device 0: ") && strings.Contains(lines[0], "pid 7") &&
		strings.Contains(lines[1], "  train (an earlier job of this name), device 0: ") && strings.Contains(lines[1], "pid 8"), text.String())
}

// While the policy's service does not run, nobody knows what programs without a job were refused. What the driver refused
// is never known.
func TestWhyWhileServiceIsDown(t *testing.T) {
	for down, want := range map[bool]string{false: "No request was refused.\n", true: "No request of a job was refused. What was refused to programs without a job is not recorded while that service does not run.\n"} {
		var text bytes.Buffer
		a := &app{out: terminal{Writer: &text, width: 200, writeErr: new(error)}}
		a.printRefusals(nil, 9, down)
		expect.Equal(t, text.String(), want)
	}
	var text bytes.Buffer
	a := &app{out: terminal{Writer: &text, width: 200, tty: true, writeErr: new(error)}}
	a.printRefusals(nil, 9, false)
	expect.True(t, strings.Contains(text.String(), "because a GPU itself was full is not here"), text.String())
}
