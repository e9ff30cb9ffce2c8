package machine

import (
	"os"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

// inNamespace has the tests below run as in a PID namespace.
func inNamespace(t *testing.T) {
	t.Helper()
	onHost = func() bool { return false }
	t.Cleanup(func() { onHost = region.OnHost })
}

// In a PID namespace, a process whose host PID is unknown is found by its PID there.
func TestNamespaceWithItsOwnPIDs(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	inNamespace(t)
	me := os.Getpid()
	d := twoDevices()
	d.processes = []gpu.Process{{Device: 0, PID: me, Used: gib}, {Device: 0, PID: os.Getppid(), Used: 2 * gib}}
	m := Machine{Jobs: []Job{{Name: "a", State: Running, Devices: []Device{{Device: 0, UUID: "GPU-a", Used: gib}},
		Processes: []Process{{Verified: true, PID: me, Local: ProcessID{PID: me}, State: Live, Holdings: []Holding{{Device: 0, Total: gib}}}}}}}
	m.addDriver(answerOf(d), lockers{})
	h := m.Jobs[0].Processes[0].Holdings[0]
	expect.True(t, h.Driver == gib && h.DriverNow, h)
	expect.True(t, len(m.Outside) == 1 && m.Outside[0].PID == os.Getppid(), "in no job", m.Outside)
}

// If the driver lists processes of a PID namespace by other PIDs, none is called one of no job, even
// one whose number is by chance that of a process here. Memory beyond all jobs is still noticed.
func TestNamespaceWithHostPIDs(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	inNamespace(t)
	me, beyond := os.Getpid(), 1<<29
	m := func(used ...uint64) Machine {
		d := twoDevices()
		d.processes = []gpu.Process{{Device: 0, PID: beyond, Used: used[0]}, {Device: 0, PID: me, Used: used[1]}}
		m := Machine{Jobs: []Job{{Name: "a", State: Running, Devices: []Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: 4 * gib, Used: 3 * gib}},
			Processes: []Process{{Verified: true, PID: me, Local: ProcessID{PID: me}, State: Live, Holdings: []Holding{{Device: 0, Total: 3 * gib}}}}}}}
		m.addDriver(answerOf(d), lockers{})
		return m
	}
	for name, c := range map[string]struct {
		used [2]uint64
		more string
	}{
		"all in jobs": {[2]uint64{2 * gib, gib}, ""},
		"drift":       {[2]uint64{2 * gib, gib + minDrift}, ""},
		"beyond":      {[2]uint64{2 * gib, 6 * gib}, "processes hold 5 GiB of device 0 beyond what the jobs here count"},
	} {
		got := m(c.used[:]...)
		expect.True(t, len(got.Outside) == 0 && got.Jobs[0].Devices[0].Driver == 0, name, got)
		found := slices.Concat(got.Findings, findingsOf(&got))
		if os.Geteuid() != 0 || c.more == "" {
			expect.True(t, len(found) == 0, name, "found", found)
			continue
		}
		expect.True(t, len(found) == 1 && found[0].Kind == OutsideJobs && strings.HasPrefix(found[0].Text, c.more), name, "found", found)
	}
}
