package launch

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

const gib = 1 << 30

func TestRoom(t *testing.T) {
	on := func(d machine.Device) []machine.Device { d.UUID = "GPU-0"; return []machine.Device{d} }
	job := func(name, state string, d machine.Device) machine.Job {
		return machine.Job{Name: name, State: state, Devices: on(d)}
	}
	for _, c := range []struct {
		what          string
		used          uint64
		jobs          []machine.Job
		left, outside uint64
	}{
		{"an empty device", 0, nil, 10 * gib, 0},
		{"the driver's own memory", gib, nil, 9 * gib, gib},
		{"a limit that is not used", 0, []machine.Job{job("a", machine.Starting, machine.Device{Limited: true, Limit: 4 * gib})}, 6 * gib, 0},
		{"a limit that is used", 3 * gib, []machine.Job{job("a", machine.Running, machine.Device{Limited: true, Limit: 4 * gib, Used: 3 * gib})}, 6 * gib, 0},
		{"a job of ration create", 0, []machine.Job{job("a", machine.Idle, machine.Device{Limited: true, Limit: 4 * gib})}, 6 * gib, 0},
		{"a job that has ended", 0, []machine.Job{job("a", machine.Ended, machine.Device{Limited: true, Limit: 4 * gib})}, 10 * gib, 0},
		{"a job that sleeps", 0, []machine.Job{{State: machine.Running, Sleep: machine.Asleep, Devices: on(machine.Device{Limited: true, Limit: 4 * gib})}}, 10 * gib, 0},
		{"a job that says it sleeps, and holds memory", gib, []machine.Job{{State: machine.Running, Sleep: machine.Asleep, Devices: on(machine.Device{Limited: true, Limit: 4 * gib, Driver: gib})}}, 6 * gib, 0},
		{"a job that wakes", 0, []machine.Job{{State: machine.Running, Sleep: machine.Waking, Devices: on(machine.Device{Limited: true, Limit: 4 * gib})}}, 6 * gib, 0},
		{"a job without a limit", 3 * gib, []machine.Job{job("a", machine.Running, machine.Device{Used: 3 * gib})}, 7 * gib, 3 * gib},
		{"more than the limit", 5 * gib, []machine.Job{job("a", machine.Running, machine.Device{Limited: true, Limit: 4 * gib, Used: 4 * gib, Driver: 5 * gib})}, 5 * gib, 0},
		{"a job and others", 5 * gib, []machine.Job{job("a", machine.Running, machine.Device{Limited: true, Limit: 4 * gib, Used: 3 * gib})}, 4 * gib, 2 * gib},
		{"more limits than memory", 0, []machine.Job{job("a", machine.Running, machine.Device{Limited: true, Limit: ^uint64(0)}), job("b", machine.Running, machine.Device{Limited: true, Limit: 9 * gib})}, 0, 0},
	} {
		m := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "GPU-0", Total: 10 * gib, Used: c.used}}, Jobs: c.jobs}
		r := roomOn(&m, 0)
		expect.Equal(t, r.left, c.left, c.what, "leaves")
		expect.Equal(t, r.outside, c.outside, c.what, "counts as others'")
		expect.Equal(t, roomOn(&m, 1).left, 0, "a device that the driver does not list", "has room for")
	}
}

// What a job beside the policy in force holds takes room, by the driver's count, and its limit takes none.
func TestRoomBesidePolicy(t *testing.T) {
	defer func(was func() func(*machine.Job) bool) { besidePolicy = was }(besidePolicy)
	besidePolicy = func() func(*machine.Job) bool { return func(j *machine.Job) bool { return j.Name == "beside" } }
	for name, want := range map[string]room{"beside": {left: 8 * gib, outside: 2 * gib}, "ration": {left: gib}} {
		d := machine.Device{UUID: "GPU-0", Limited: true, Limit: 9 * gib, Used: 7 * gib, Driver: 2 * gib}
		m := machine.Machine{Devices: []machine.GPU{{UUID: "GPU-0", Total: 10 * gib, Used: 2 * gib}}, Jobs: []machine.Job{{Name: name, State: machine.Running, Devices: []machine.Device{d}}}}
		r := roomOn(&m, 0)
		expect.True(t, r.left == want.left && r.outside == want.outside && (len(r.holders) == 0) == (name == "beside"), name, r)
	}
}

func TestWants(t *testing.T) {
	driver := &gpu.Driver{Devices: []gpu.Device{{Total: 10 * gib, Reserved: gib}, {Total: 10 * gib}}}
	wants := func(driver *gpu.Driver, bytes ...uint64) (map[int]uint64, error) {
		var l region.Limits
		for i, b := range bytes {
			l.Memory[i] = abi.MakeLimit(b)
		}
		return Plan{}.wants(l, driver, errors.New("no driver"))
	}
	got, err := wants(driver, 9*gib, 0)
	expect.True(t, err == nil && len(got) == 1 && got[0] == 9*gib, got, err)
	_, err = wants(driver, 9*gib+512)
	var input *limit.InputError
	expect.True(t, errors.As(err, &input), "more than an empty device has room for", err)
	_, err = wants(driver)
	expect.True(t, errors.Is(err, ErrCannotWait), "no limit", err)
	_, err = wants(nil, gib)
	expect.True(t, err != nil && strings.Contains(err.Error(), "no driver"), "no driver", err)
	_, err = wants(&gpu.Driver{Devices: []gpu.Device{{Total: gib, MIG: true}}}, 1<<20)
	expect.True(t, errors.Is(err, ErrCannotWait), "MIG", err)
}

// The sleep of another user's job, and its lower limits, change another queue than this user's: they are looked for.
func TestOthersAreReadAgain(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	w, err := watchJobs()
	expect.OK(t, err)
	defer w.stop()
	for uid, sure := range map[int]bool{job.User(): true, job.User() + 1: false} {
		m := machine.Machine{Devices: []machine.GPU{{Total: 8}}, Jobs: []machine.Job{
			{Path: filepath.Join(t.TempDir(), "none"), UID: uid, Devices: []machine.Device{{Limited: true, Limit: 6}}}}}
		expect.Equal(t, w.ends(&m, []int{0}), sure, "jobs of user", uid)
	}
}
