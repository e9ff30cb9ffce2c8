package machine

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/proc"
)

// Only operators' jobs over their limits are listed, with the processes that put them over: those outside a
// policy's job if the others are within the limit, and never a process that started after the driver was asked.
func TestEscapes(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	sleep := exec.Command("sleep", "1000")
	expect.OK(t, sleep.Start())
	t.Cleanup(func() { _, _ = sleep.Process.Kill(), sleep.Wait() })
	for began, err := proc.Started(sleep.Process.Pid); err == nil && began >= proc.Now(); { // a tick later it is clear
		time.Sleep(5 * time.Millisecond)
	}
	own, other, uid := os.Getpid(), sleep.Process.Pid, os.Getuid()
	file := job.FileOf(&unix.Stat_t{Dev: 7, Ino: 8})
	in := func(pids ...int) map[int][]job.FileID {
		out := map[int][]job.FileID{}
		for _, pid := range pids {
			out[pid] = []job.FileID{file}
		}
		return out
	}
	const keep = job.RootFolder + "/train/region"
	policys := job.OfUserPath(uid)
	for name, c := range map[string]struct {
		path    string
		lockers map[int][]job.FileID
		used    []gpu.Process
		late    bool // both began after the driver was asked
		want    []int
	}{
		"within the limit":                  {keep, in(own, other), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 0, PID: other, Used: gib}}, false, nil},
		"both together":                     {keep, in(own, other), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 0, PID: other, Used: 2 * gib}}, false, []int{own, other}},
		"only those on the device":          {keep, in(own, other), []gpu.Process{{Device: 1, PID: own, Used: gib}, {Device: 0, PID: other, Used: 3 * gib}}, false, []int{other, own}},
		"one that has ended":                {keep, in(own, 1<<21), []gpu.Process{{Device: 0, PID: own, Used: 2 * gib}, {Device: 0, PID: 1 << 21, Used: gib}}, false, []int{own}},
		"PIDs of later processes":           {keep, in(own, other), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 0, PID: other, Used: 2 * gib}}, true, nil},
		"a user's own job":                  {"/run/user/1/ration/train/region", in(own), []gpu.Process{{Device: 0, PID: own, Used: 3 * gib}}, false, nil},
		"beside a job that is no policy's":  {keep, in(own), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 0, PID: other, Used: 3 * gib}}, false, nil},
		"outside, the job within its limit": {policys, in(own), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 0, PID: other, Used: 3 * gib}}, false, []int{other}},
		"outside and inside":                {policys, in(own), []gpu.Process{{Device: 0, PID: own, Used: 3 * gib}, {Device: 0, PID: other, Used: gib}}, false, []int{own, other}},
		"outside, on another device":        {policys, in(own), []gpu.Process{{Device: 0, PID: own, Used: gib}, {Device: 1, PID: other, Used: 3 * gib}}, false, []int{other}},
		"outside there, and inside":         {policys, in(own), []gpu.Process{{Device: 0, PID: own, Used: 3 * gib}, {Device: 1, PID: other, Used: gib}}, false, []int{own, other}},
		"outside, within the limit":         {policys, in(own), []gpu.Process{{Device: 0, PID: other, Used: 2 * gib}}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := twoDevices()
			d.processes = c.used
			m := Machine{Jobs: []Job{{Name: "a", Path: c.path, State: Running, file: file, Devices: []Device{{Device: 3, UUID: "GPU-a", Limited: true, Limit: 2 * gib}}}}}
			a := answerOf(d)
			if c.late {
				a.asked = 1
			}
			m.addDriver(a, lockers{files: c.lockers})
			var got []int
			for _, e := range m.Escapes {
				for _, p := range e.Processes {
					got = append(got, p.PID)
					expect.True(t, p.UID == uid && p.Started != 0 && p.Outside == (c.lockers[p.PID] == nil) && e.Over != 0 && e.Device == 3 && e.Job.Path == c.path, "got", e)
				}
			}
			expect.True(t, slices.Equal(got, c.want), "got", got, "want", c.want, "of", m.Escapes)
		})
	}
}

// What a process outside a policy's job holds on a device that the job does not have counts for the limit, but the
// job's device does not hold it. If no device of the machine is the job's, it may be that one.
func TestEscapedElsewhere(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	for uuid, want := range map[string]Device{
		"":            {EscapedElsewhere: 3 * gib},
		"GPU-b":       {EscapedElsewhere: 3 * gib},
		"GPU-nowhere": {Driver: 3 * gib},
	} {
		d := twoDevices()
		d.processes = []gpu.Process{{Device: 0, PID: os.Getpid(), Used: 3 * gib}}
		m := Machine{Jobs: []Job{{Name: "a", Path: job.OfUserPath(os.Getuid()), State: Running, Devices: []Device{{Device: 1, UUID: uuid, Limited: true, Limit: 2 * gib}}}}}
		m.addDriver(answerOf(d), lockers{})
		got := m.Jobs[0].Devices[0]
		expect.True(t, got.Driver == want.Driver && got.EscapedElsewhere == want.EscapedElsewhere && got.Escaped == 0 && got.Over() == gib, uuid, "got", got)
		found := findingsOf(&m)
		i := slices.IndexFunc(found, func(f Finding) bool { return f.Kind == OverLimit })
		expect.True(t, i >= 0 && strings.HasSuffix(found[i].Text, "; processes of the user outside the job hold 3 GiB of other devices") == (want.EscapedElsewhere > 0) &&
			!strings.Contains(found[i].Remedy, "as after the limit was lowered"), uuid, "found", found)
	}
}
