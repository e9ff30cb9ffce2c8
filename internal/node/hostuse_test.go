package node

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/proc"
	"ration/machine"
)

// startCat starts a process that ends with the test.
func startCat(t *testing.T, arguments ...string) machine.ProcessID {
	t.Helper()
	cmd := exec.Command("cat", arguments...)
	_, err := cmd.StdinPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	for { // Start returns before the kernel has set up all of the new program
		if s, _ := proc.ReadStat(cmd.Process.Pid); s.State == 'S' {
			break
		}
		time.Sleep(time.Millisecond)
	}
	start, err := proc.Started(cmd.Process.Pid)
	expect.OK(t, err)
	return machine.ProcessID{PID: cmd.Process.Pid, Start: start}
}

func TestHostMeter(t *testing.T) {
	start, err := proc.Started(os.Getpid())
	expect.OK(t, err)
	own := machine.ProcessID{PID: os.Getpid(), Start: start}
	other := startCat(t, "-", "-")
	reused := other
	reused.Start--
	var m HostMeter
	got := m.Read([]machine.ProcessID{own, other, reused})
	expect.True(t, got[0] != nil && slices.Equal(got[0].Command, os.Args) && got[0].RSS > 1<<20, got[0])
	expect.True(t, got[1] != nil && slices.Equal(got[1].Command, []string{"cat", "-", "-"}) && got[1].RSS > 0, got[1])
	expect.True(t, got[2] == nil, "another process with that PID", got[2])

	// The share is that of the time since the last read.
	before := got[0]
	for began := time.Now(); time.Since(began) < minCPUSpan+50*time.Millisecond; {
	}
	after := m.Read([]machine.ProcessID{own})[0]
	expect.True(t, after.CPUTime > before.CPUTime && after.CPU.Percent > 5, after)
	expect.True(t, after.CPU.Seconds >= minCPUSpan.Seconds() && after.CPU.Seconds < 60, after)
}

func TestCPUShare(t *testing.T) {
	at := time.Unix(1000, 0)
	c := cpuCount{at: at, total: 10 * time.Second, share: machine.Time{Percent: 42}}
	next := func(cpu, later time.Duration) machine.Time {
		return c.next(proc.Stat{CPU: cpu}, at.Add(later)).share
	}
	expect.Equal(t, next(13*time.Second, 2*time.Second), machine.Time{Percent: 150, Seconds: 2})
	expect.Equal(t, next(9*time.Second, 2*time.Second), machine.Time{Percent: 0, Seconds: 2})
	expect.Equal(t, next(13*time.Second, minCPUSpan/2).Percent, 42.0, "a short time keeps the share")
	first := cpuCount{}.next(proc.Stat{CPU: time.Second, Start: proc.Now() - 400}, at).share
	expect.True(t, first.Percent > 20 && first.Percent < 26, "since its start", first)
}
