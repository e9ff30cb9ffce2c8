package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
)

const gib = 1 << 30

// stand is a driver that says what it is told to.
type stand struct {
	devices   []gpu.Device
	processes []gpu.Process
	silent    error
	lost      map[int]error // devices
}

func (s stand) Describe() []gpu.Device            { return s.devices }
func (s stand) Processes() ([]gpu.Process, error) { return s.processes, cmp.Or(s.silent, s.lost[1]) }
func (s stand) Status(device int) (gpu.Status, error) {
	if err := cmp.Or(s.silent, s.lost[device]); err != nil {
		return gpu.Status{}, err
	}
	celsius := 40 + device
	return gpu.Status{Used: uint64(device+1) * gib, Temperature: &celsius}, nil
}

func twoDevices() stand {
	return stand{devices: []gpu.Device{{Index: 0, UUID: "GPU-a", Name: "one\x1b[2J", Total: limit.Size(10 * gib)}, {Index: 1, UUID: "GPU-b", Total: limit.Size(20 * gib)}}}
}

// Devices of jobs are found by their UUIDs, whatever their numbers in the job, and jobs that
// have ended have nothing of them.
func TestRations(t *testing.T) {
	m := Machine{Jobs: []Job{
		{Name: "a", State: Running, Devices: []Device{{Device: 0, UUID: "GPU-b", Limited: true, Limit: 5 * gib}, {Device: 1, Limited: true, Limit: 3 * gib}}},
		{Name: "b", State: Starting, Devices: []Device{{Device: 0, Limited: true, Limit: 8 * gib}, {Device: 7, Limited: true, Limit: gib}}},
		{Name: "c", State: Ended, Devices: []Device{{Device: 0, Limited: true, Limit: 9 * gib}}},
		{Name: "d", State: Idle, Devices: []Device{{Device: 1, Used: 1}, {Device: 0, UUID: "GPU-elsewhere", Limited: true, Limit: gib}}},
		{Name: "e", State: Idle, Devices: []Device{{Device: 0, Limited: true, Limit: ^uint64(0)}}},                   // a tenant's own
		{Name: "f", State: Idle, Devices: []Device{{Device: 0, Limited: true}, {Device: 1, Limited: true, Used: 1}}}, // not for this job
	}}
	m.addDriver(answerOf(twoDevices()), lockers{})
	if g := m.Devices[1]; g.Rations != 8*gib || g.Jobs != 2 || g.Unlimited != 1 || g.Used != 2*gib || *g.Temperature != 41 || g.Power != nil {
		t.Errorf("got %+v", g)
	}
	if g := m.Devices[0]; g.Rations != ^uint64(0) || g.Jobs != 2 || g.Name != "one?[2J" {
		t.Errorf("got %+v", g)
	}
	found := findingsOf(&m)
	expect.True(t, len(found) == 1 && found[0].Kind == Overbooked && found[0].Device == 0, "got", found)
}

// An overbooked device is said in good English, for one job and for more.
func TestOverbookedSentence(t *testing.T) {
	for jobs, want := range map[int]string{
		1: "device 0 is overbooked: 1 job has 20 GiB of its 10 GiB alone, and may find none left within its limit",
		2: "device 0 is overbooked: 2 jobs have 20 GiB of its 10 GiB together, and may find none left within their limits",
	} {
		found := findingsOf(&Machine{Devices: []GPU{{Total: 10 * gib, Rations: 20 * gib, Jobs: jobs}}})
		expect.True(t, len(found) == 1 && found[0].Text == want && found[0].Remedy != "", "got", found)
	}
}

// What a process claims to be does not take another one off the list of those in no job.
func TestOutside(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	me := os.Getpid()
	d := twoDevices()
	d.processes = []gpu.Process{{Device: 0, PID: me, Used: 2 * gib}, {Device: 1, PID: me, Used: gib}, {Device: 0, PID: os.Getppid(), Used: 1 << 20}, {Device: 0, PID: 1 << 29, Used: gib}}
	process := func(verified bool) Machine {
		return Machine{Jobs: []Job{{Name: "a", State: Running, Devices: []Device{{Device: 3, UUID: "GPU-a"}},
			Processes: []Process{{Verified: verified, PID: 1, HostPID: me, State: Live, Holdings: []Holding{{Device: 3, Total: gib}}}}}}}
	}
	m := process(true)
	m.addDriver(answerOf(d), lockers{})
	h := m.Jobs[0].Processes[0].Holdings[0]
	expect.True(t, h.Driver == 2*gib && h.DriverNow, h)
	expect.True(t, !slices.ContainsFunc(m.Outside, func(o Outside) bool { return o.PID == me }), "a process of a job is outside", m.Outside)
	kinds := func(m *Machine) (out []string) {
		for _, f := range findingsOf(m) {
			out = append(out, f.Kind)
		}
		return out
	}
	if os.Geteuid() == 0 {
		expect.True(t, len(m.Outside) == 2 && m.Outside[0].PID == os.Getppid() && m.Outside[0].Name != "" && m.Outside[1].UID == -1, "got", m.Outside)
		if got := kinds(&m); !slices.Equal(got, []string{Drift, Drift, OutsideJobs}) { // of both devices
			t.Errorf("got %v", got)
		}
	}
	m = process(false)
	m.addDriver(answerOf(d), lockers{})
	expect.Equal(t, len(slices.DeleteFunc(m.Outside, func(o Outside) bool { return o.PID != me })), 2, "it is outside of jobs", "times, want 2")
}

// What a process claims to be does not take from another one what the driver counts for it, in
// whichever order their jobs are read; and where it is spoken of, its PID is marked.
func TestClaimTakesNoDrift(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	job := func(name string, verified bool) Job {
		return Job{Name: name, State: Running, Devices: []Device{{Device: 0, UUID: "GPU-a"}},
			Processes: []Process{{Verified: verified, PID: 1, HostPID: 4711, Name: name, State: Live, Holdings: []Holding{{Total: gib}}}}}
	}
	d := twoDevices()
	d.processes = []gpu.Process{{Device: 0, PID: 4711, Used: 3 * gib}}
	for _, jobs := range [][]Job{{job("honest", true), job("claims", false)}, {job("claims", false), job("honest", true)}} {
		m := Machine{Jobs: jobs}
		m.addDriver(answerOf(d), lockers{})
		for _, j := range m.Jobs {
			h := j.Processes[0].Holdings[0]
			expect.True(t, h.DriverNow == (j.Name == "honest"), j.Name, "after", jobs[0].Name, h)
		}
		if found := findingsOf(&m); len(found) != 1 || !strings.Contains(found[0].Text, "job honest for honest (pid 4711)") {
			t.Errorf("got %+v", found)
		}
	}
	m := Machine{Jobs: []Job{job("claims", false)}}
	m.addDriver(answerOf(d), lockers{})
	if found := findingsOf(&m); len(found) == 0 || !strings.Contains(found[0].Text, "for claims (pid 4711, unconfirmed)") {
		t.Errorf("got %+v", found)
	}
}

// What the driver counts for a job's processes is compared with the job's limit, whatever the region says: which
// processes these are is the kernel's word.
func TestOverLimit(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	const pid, uid = 4711, 1 << 28
	file := job.FileOf(&unix.Stat_t{Dev: 7, Ino: 8})
	held := func(bytes uint64) []Holding { return []Holding{{Device: 3, Total: bytes}} }
	of := func(limit uint64, processes ...Process) Job {
		return Job{Name: "a", State: Running, file: file, Devices: []Device{{Device: 3, UUID: "GPU-a", Limited: true, Limit: limit}}, Processes: processes}
	}
	as := func(j Job, uuid string) Job {
		j.Devices[0].UUID = uuid
		return j
	}
	holding := func(j Job, bytes uint64) Job {
		j.Devices[0].Used = bytes
		return j
	}
	twice := func(j Job) Job {
		j.Devices = slices.Insert(j.Devices, 0, Device{Device: 4, UUID: "GPU-a", Limited: true, Limit: 3 * gib}, Device{Device: 5, UUID: "GPU-a"})
		return j
	}
	damaged := func(j Job) Job {
		j.err = errors.New("cut short")
		return j
	}
	verified := func(h []Holding) Process {
		return Process{Verified: true, PID: 1, HostPID: pid, Name: "p", State: Live, Holdings: h}
	}
	for name, c := range map[string]struct {
		job     Job
		lockers map[int][]job.FileID
		used    uint64
		over    uint64
		kinds   []string
	}{
		"as limited":                        {of(4*gib, verified(held(4*gib))), nil, 4*gib + minDrift, 0, nil},
		"beyond, and partly in its account": {holding(of(2*gib, verified(held(12*gib))), 11*gib), nil, 12 * gib, 10 * gib, []string{OverLimit}},
		"beyond, and accounted":             {of(2*gib, verified(held(12*gib))), nil, 12 * gib, 10 * gib, []string{OverLimit}},
		"beyond, as the limit was lowered":  {holding(of(2*gib, verified(held(12*gib))), 12*gib), nil, 12 * gib, 10 * gib, []string{OverLimit}},
		"its account is empty":              {of(2*gib, verified(nil)), nil, 12 * gib, 10 * gib, []string{Drift, OverLimit}},
		"its slot is free":                  {of(2 * gib), map[int][]job.FileID{pid: {job.FileOf(&unix.Stat_t{Dev: 7, Ino: 9}), file}}, 12 * gib, 10 * gib, []string{OverLimit}},
		"its account is of another device":  {of(2*gib, verified([]Holding{{Device: 9, Total: gib}})), nil, 12 * gib, 10 * gib, []string{Drift, OverLimit}},
		"its device claims another's UUID":  {as(of(2*gib, verified(nil)), "GPU-b"), nil, 12 * gib, 10 * gib, []string{Drift, OverLimit}},
		"its device claims to be elsewhere": {as(of(2*gib), "GPU-nowhere"), map[int][]job.FileID{pid: {file}}, 12 * gib, 10 * gib, []string{OverLimit}},
		"two devices claim its UUID":        {twice(of(2 * gib)), map[int][]job.FileID{pid: {file}}, 12 * gib, 10 * gib, []string{OverLimit}},
		"its region is damaged":             {damaged(of(2 * gib)), map[int][]job.FileID{pid: {file}}, 12 * gib, 10 * gib, []string{Unreadable, OverLimit}},
		"within the limit, but unaccounted": {of(10*gib, verified(nil)), nil, 9 * gib, 0, []string{Drift}},
	} {
		t.Run(name, func(t *testing.T) {
			d := twoDevices()
			d.processes = []gpu.Process{{Device: 0, PID: pid, Used: c.used}}
			m := Machine{Jobs: []Job{c.job}}
			m.addDriver(answerOf(d), lockers{files: c.lockers})
			last := &m.Jobs[0].Devices[len(m.Jobs[0].Devices)-1]
			got := last.Over()
			expect.True(t, got == c.over && len(m.Outside) == 0, "over by", got, "want", c.over, "outside are", m.Outside)
			var kinds []string
			for _, f := range findingsOf(&m) {
				kinds = append(kinds, f.Kind)
				lowered := strings.Contains(f.Remedy, "by its own account it holds 12 GiB, as after the limit was lowered")
				expect.True(t, f.Kind != OverLimit || lowered == (name == "beyond, as the limit was lowered"), "got", f.Remedy)
				expect.True(t, f.Kind != OverLimit || strings.Contains(f.Text, "job a is over its limit by 10 GiB: the driver counts 12 GiB of device 3"), "got", f.Text)
			}
			expect.True(t, slices.Equal(kinds, c.kinds), "found", kinds, "want", c.kinds)
		})
	}
	t.Run("outside the job of a policy", func(t *testing.T) {
		m := Machine{Devices: []GPU{{Device: 0, UUID: "GPU-a"}}, Jobs: []Job{of(2 * gib)}}
		m.Jobs[0].Path = job.OfUserPath(uid)
		for _, o := range []Outside{{Device: 0, UID: uid, Used: 3 * gib}, {Device: 1, UID: uid, Used: gib}, {Device: 0, UID: uid + 1, Used: gib}, {Device: 0, UID: -1, Used: gib}} {
			m.addEscaped(o)
		}
		if d := m.Jobs[0].Devices[0]; d.Driver != 3*gib || d.Escaped != 3*gib || d.Over() != gib {
			t.Errorf("got %+v", d)
		}
		found := findingsOf(&m)
		expect.True(t, len(found) == 1 && strings.Contains(found[0].Text, "(3 GiB are of processes of the user outside the job)"), found)
	})
}

// Below the bounds nothing is found, above them it is, in a sentence.
func TestFindings(t *testing.T) {
	base := func() Machine {
		return Machine{Jobs: []Job{{Name: "a", Path: "/x/a/region", State: Running, Devices: []Device{{Device: 0, Compute: &Compute{Share: 30}}},
			Processes: []Process{{Verified: true, PID: 7, HostPID: 7, Name: "p", State: Live,
				Holdings: []Holding{{Total: 10 * gib, Driver: 10 * gib, DriverNow: true, Compute: &ProcessCompute{State: Kept}}}}}}}}
	}
	holding := func(m *Machine) *Holding { return &m.Jobs[0].Processes[0].Holdings[0] }
	for name, c := range map[string]struct {
		change func(m *Machine)
		kind   string // "": none
		text   string
	}{
		"well":              {func(*Machine) {}, "", ""},
		"drift in bounds":   {func(m *Machine) { holding(m).Driver += 10 * gib / 50 }, "", ""},
		"drift up":          {func(m *Machine) { holding(m).Driver += 10*gib/50 + 1 }, Drift, "the driver counts 205 MiB more than job a for p (pid 7) on device 0"},
		"drift down":        {func(m *Machine) { holding(m).Driver = 0 }, Drift, "10 GiB less"},
		"drift of little":   {func(m *Machine) { holding(m).Total, holding(m).Driver = 0, 64<<20 }, "", ""},
		"drift of a little": {func(m *Machine) { holding(m).Total, holding(m).Driver = 0, 64<<20+1 }, Drift, "64 MiB more"},
		"an old reading":    {func(m *Machine) { holding(m).Driver, holding(m).DriverNow = 0, false }, "", ""},
		"dead":              {func(m *Machine) { m.Jobs[0].Processes[0].State = Dead }, DeadProcesses, "job a counts 10 GiB for 1 dead process"},
		"few reads":         {func(m *Machine) { m.Jobs[0].Reads = Reads{}.and(Reads{Reads: 999, BestEffort: 999}) }, "", ""},
		"reads in bounds":   {func(m *Machine) { m.Jobs[0].Reads = Reads{}.and(Reads{Reads: 2000, BestEffort: 2}) }, "", ""},
		"reads gave up":     {func(m *Machine) { m.Jobs[0].Reads = Reads{}.and(Reads{Reads: 2000, BestEffort: 3}) }, GaveUp, "0.15 % of the reads of job a's accounts gave up (3 of 2,000)"},
		"reads claimed":     {func(m *Machine) { m.Jobs[0].Reads = Reads{}.and(Reads{Reads: 1000, BestEffort: 1 << 62}) }, GaveUp, "1e+02 % of"},
		"share": {func(m *Machine) {
			holding(m).Compute = &ProcessCompute{State: NotEnforced, Reason: "it was refused"}
		}, ShareUnkept, "the share of job a of device 0's time is not enforced: it was refused"},
		"unreadable": {func(m *Machine) { m.Jobs[0] = Job{Name: "a", Error: "cut\x1b[2J"} }, Unreadable, "job a cannot be read: cut?[2J"},
		"outside": {func(m *Machine) {
			m.Outside = []Outside{{PID: 9, Used: 64 << 20, Name: "x", User: "u", Container: "docker/0"}}
		}, OutsideJobs, "x (pid 9) of user u in docker/0 holds 64 MiB of device 0"},
		"outside little": {func(m *Machine) { m.Outside = []Outside{{PID: 9, Used: 64<<20 - 1}} }, "", ""},
		"full":           {func(m *Machine) { m.Devices = []GPU{{Total: gib, Rations: gib, Jobs: 2}} }, "", ""},
		"overbooked":     {func(m *Machine) { m.Devices = []GPU{{Total: gib, Rations: gib + 1, Jobs: 2}} }, Overbooked, "device 0 is overbooked: 2 jobs"},
	} {
		m := base()
		c.change(&m)
		got := findingsOf(&m)
		switch {
		case c.kind == "" && len(got) > 0:
			t.Errorf("%s: found %+v", name, got)
		case c.kind != "" && (len(got) != 1 || got[0].Kind != c.kind || !strings.Contains(got[0].Text, c.text) || got[0].Remedy == ""):
			t.Errorf("%s: found %+v, want %s: %s", name, got, c.kind, c.text)
		}
	}
	m := base()
	m.Outside = []Outside{{PID: 9, UID: 1001, Used: gib, Exempt: true}, {PID: 9, UID: -1, Used: gib}, {PID: 8, UID: 1002, Used: gib}}
	expect.Equal(t, len(findingsOf(&m)), 2, "findings about users who are not exempt")
	m = base()
	for i := range 1000 {
		m.Outside = append(m.Outside, Outside{PID: i, Used: gib})
	}
	expect.Equal(t, len(findingsOf(&m)), maxFindings, "findings of one kind")
}

// Rations of a policy that lets them come to more than a device has are no finding. Other jobs' limits are.
func TestOverbookedByPolicy(t *testing.T) {
	defer func(was func() bool) { policyOverbooks = was }(policyOverbooks)
	of := func(path string, limit uint64) Job {
		return Job{Path: path, Devices: []Device{{UUID: "GPU-a", Limited: true, Limit: limit}}}
	}
	users := []Job{of(job.OfUserPath(1000), 8*gib), of(job.OfUserPath(1001), 4*gib), of(job.RunPath(1001, "train"), 4*gib)}
	for name, c := range map[string]struct {
		overbooks bool
		more      []Job
		text      string
	}{
		"they must fit":               {false, nil, "device 0 is overbooked: 3 jobs have 16 GiB of its 10 GiB together"},
		"they need not":               {true, nil, ""},
		"beside jobs that fit":        {true, []Job{of("/a", 5*gib), of("/b", 5*gib)}, ""},
		"beside jobs that do not fit": {true, []Job{of("/a", 5*gib), of("/b", 6*gib)}, "device 0 is overbooked: 2 jobs have 11 GiB of its 10 GiB together"},
	} {
		policyOverbooks = func() bool { return c.overbooks }
		m := Machine{Devices: []GPU{{UUID: "GPU-a", Total: 10 * gib}}, Jobs: slices.Concat(users, c.more)}
		m.AddRations()
		expect.Equal(t, m.Devices[0].Jobs, 3+len(c.more), name)
		var text string
		for _, f := range findingsOf(&m) {
			text += f.Text
		}
		expect.True(t, strings.HasPrefix(text, c.text) && (text == "") == (c.text == ""), name, text)
	}
}

// A driver that does not answer is a finding, and the rest is there.
func TestSilentDriver(t *testing.T) {
	d := twoDevices()
	d.silent = errors.New("no\x07")
	m := Machine{Jobs: []Job{{Name: "a"}}}
	m.addDriver(answerOf(d), lockers{})
	var kinds []string
	for _, f := range m.Findings {
		kinds = append(kinds, fmt.Sprint(f.Kind, f.Device))
	}
	expect.True(t, len(m.Devices) == 2 && strings.Join(kinds, " ") == "gpu-failed0 gpu-failed1 driver-no-list-1" && !strings.Contains(fmt.Sprint(m), "\x07"), "got", m)
}

// One GPU of two that does not answer is a finding, and what the driver says of the other counts.
func TestLostDevice(t *testing.T) {
	d := twoDevices()
	d.lost, d.processes = map[int]error{1: errors.New("lost (try nvidia-smi)")}, []gpu.Process{{Device: 0, PID: 4711, Used: gib}}
	a := answerOf(d)
	expect.True(t, a.err == nil && len(a.processes) == 1, a.err, a.processes)
	var m Machine
	m.addDriver(a, lockers{})
	expect.True(t, len(m.Findings) == 1 && m.Findings[0].Kind == DeviceFailed && m.Findings[0].Text == "GPU 1 does not answer: lost", m.Findings)
	expect.True(t, !m.Devices[0].Failed && m.Devices[1].Failed, m.Devices)
}

// What jobs have of a GPU that does not even say its UUID stays theirs, and no other GPU's.
func TestRationsOnLostDevice(t *testing.T) {
	d := twoDevices()
	d.lost, d.devices[1] = map[int]error{1: errors.New("lost")}, gpu.Device{Index: 1}
	m := Machine{Jobs: []Job{{State: Running, Devices: []Device{{Device: 1, UUID: "GPU-b", Limited: true, Limit: 3 * gib}, {Device: 1, UUID: "GPU-a", Limited: true, Limit: gib}, {Device: 0, UUID: "GPU-b", Limited: true, Limit: 5 * gib}}}}}
	m.addDriver(answerOf(d), lockers{})
	expect.Equal(t, [2]uint64{m.Devices[0].Rations, m.Devices[1].Rations}, [2]uint64{gib, 3 * gib})
}

// A user with thousands of jobs that cannot be read, or thousands of UIDs, hides nothing that is to be
// known of another's.
func TestFindingsOfFloodingUser(t *testing.T) {
	const eve, ada = 100000, 2000000
	accountOf = func(uid int) int {
		if uid >= eve && uid < ada {
			return eve
		}
		return uid
	}
	defer func() { accountOf = proc.Account }()
	var m Machine
	for n := range 10 * maxFindings {
		m.Jobs = append(m.Jobs, Job{UID: eve + n, Path: fmt.Sprint(n), Error: "damaged"})
	}
	m.Jobs = append(m.Jobs, Job{UID: ada, Path: "ada's", Error: "damaged"})
	found := findingsOf(&m)
	expect.True(t, len(found) == maxFindings+1 && found[maxFindings].Path == "ada's", len(found), "findings, the last of", found[len(found)-1].Path)
}

// A job that says a device is larger than it is does not hide from root that more is handed out than
// there is; a user's own program may have been told less than there is.
func TestOverbookedWhateverJobsSay(t *testing.T) {
	m := Machine{Devices: []GPU{{UUID: "GPU-a", Total: gib, Rations: 2 * gib, Jobs: 2}},
		Jobs: []Job{{UID: 7, State: Running, Devices: []Device{{UUID: "GPU-a", Total: 1 << 60}}}}}
	expect.True(t, knownTotal(&m, "GPU-a", 0) == 0 && knownTotal(&m, "GPU-a", 7) == 1<<60 && knownTotal(&m, "GPU-b", 7) == 0,
		"a job's word counts for another than its user")
	found := findingsOf(&m)
	expect.Equal(t, len(found) == 1 && found[0].Kind == Overbooked, os.Geteuid() == 0, found)
}

// The region of a new job may have the number of a file that is gone. A process that had that one locked, and is still in
// the driver's last answer, counts for no other user's job.
func TestReusedFile(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	const pid = 1 << 29
	file, read := job.FileOf(&unix.Stat_t{Dev: 7, Ino: 8}), time.Unix(100, 0)
	for made, want := range map[time.Time]uint64{read: 3 * gib, read.Add(1): 0} {
		m := Machine{Jobs: []Job{{Name: "b", State: Running, file: file, Created: made, Devices: []Device{{UUID: "GPU-a", Limited: true, Limit: 11 * gib}}}}}
		d := twoDevices()
		d.processes = []gpu.Process{{Device: 0, PID: pid, Used: 3 * gib}}
		m.addDriver(answerOf(d), lockers{read, map[int][]job.FileID{pid: {file}}})
		expect.Equal(t, m.Jobs[0].Devices[0].Driver, want, "made", made)
	}
}

// A job that says it sleeps, while the driver counts memory of its processes, does not hide that the device is overbooked.
func TestOverbookedBySleeper(t *testing.T) {
	t.Setenv(job.EnvFolder, "")
	const pid = 4711
	file := job.FileOf(&unix.Stat_t{Dev: 7, Ino: 8})
	for used, want := range map[uint64]uint64{minDrift: 0, 3 * gib: 11 * gib} {
		m := Machine{Jobs: []Job{{Name: "a", State: Running, Sleep: Asleep, file: file, Devices: []Device{{UUID: "GPU-a", Limited: true, Limit: 11 * gib}}}}}
		d := twoDevices()
		d.processes = []gpu.Process{{Device: 0, PID: pid, Used: used}}
		m.addDriver(answerOf(d), lockers{files: map[int][]job.FileID{pid: {file}}})
		expect.Equal(t, m.Devices[0].Rations, want, "with", used, "held, the limits add up to")
	}
}

// Read has the devices of the driver, and without one an empty list.
func TestReadDevices(t *testing.T) {
	if os.Getenv("RATION_TEST_DEVICES") != "" {
		m, err := Read()
		fmt.Printf("%d devices, %v\n", len(m.Devices), err)
		return
	}
	build, err := filepath.Abs(cmp.Or(os.Getenv("RATION_TEST_BUILD"), "../build")) // make arm64 has another
	expect.OK(t, err)
	driver := filepath.Join(build, "fakegpu")
	if _, err := os.Stat(filepath.Join(driver, "libnvidia-ml.so.1")); err != nil {
		t.Skipf("no stand-in driver: %v (make native builds it)", err)
	}
	child := exec.Command(os.Args[0], "-test.run=TestReadDevices$")
	child.Env = append(os.Environ(), "RATION_TEST_DEVICES=1", job.EnvFolder+"="+t.TempDir(), "LD_LIBRARY_PATH="+driver, "FAKEGPU=h100x2:8g", "FAKEGPU_STATE="+filepath.Join(t.TempDir(), "gpu"))
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "2 devices, <nil>") {
		t.Errorf("%v: %s", err, out)
	}
}

// That a GPU fails, and that it answers again, is an event each; a scan without an answer of the driver is none, nor is a GPU
// that had failed before.
func TestDeviceEvents(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	s := newScanner(job.ScanOptions{})
	defer s.Close()
	s.driver = &driverPoll{stop: make(chan struct{})}
	at := time.Unix(1e9, 0)
	s.now = func() time.Time { at = at.Add(time.Second); return at }
	var got []string
	ids := map[EventID]bool{}
	for n, failed := range [][]int{{1}, {0, 1}, nil, {0}, {}, {0}} { // nil is no answer
		s.driver.last = nil
		if s.driver.news, s.driver.at = true, time.Now(); failed != nil {
			a := &driverAnswer{devices: []gpu.Device{{Index: 0}, {Index: 1}}, status: map[int]gpu.Status{}, failed: map[int]error{}}
			for _, i := range failed {
				a.failed[i] = errors.New("lost")
			}
			s.driver.last = a
		}
		r, err := s.Scan(true)
		expect.OK(t, err)
		for _, e := range r.Events {
			got = append(got, fmt.Sprint(n, " ", e.Kind, " ", *e.Device, ": ", e.Text))
			expect.True(t, !ids[e.ID()], e)
			ids[e.ID()] = true
		}
	}
	expect.Equal(t, strings.Join(got, "\n"), "1 gpu-failed 0: GPU 0 does not answer: lost\n3 gpu-back 1: GPU 1 answers again\n4 gpu-back 0: GPU 0 answers again\n5 gpu-failed 0: GPU 0 does not answer: lost")
}

// A process in no job of a user that the policy exempts is where it may be.
func TestOutsideOfExempt(t *testing.T) {
	defer func(was func(int) bool) { exempt = was }(exempt)
	for _, is := range []bool{true, false} {
		exempt = func(uid int) bool { return is && uid == os.Getuid() }
		var m Machine
		m.addProcesses(&driverAnswer{processes: []gpu.Process{{PID: os.Getpid(), Used: 1 << 30}}}, lockers{})
		expect.True(t, len(m.Outside) == 1 && m.Outside[0].Exempt == is, is, m.Outside)
	}
}

// That the policy's service does not run is a finding as long as it lasts, although nothing else changes.
func TestPolicyDown(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	s := newScanner(job.ScanOptions{})
	defer s.Close()
	yes, no := true, false
	for n, up := range []*bool{nil, &yes, &no, &yes} {
		s.policyUp = func() *bool { return up }
		r, err := s.Scan(true)
		expect.OK(t, err)
		down := slices.ContainsFunc(r.Machine.Findings, func(f Finding) bool { return f.Kind == PolicyDown })
		expect.Equal(t, down, up == &no, n)
	}
}
