package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/job"
)

// A job with all that a region can hold, the kernel's word for every second process.
func fullJob(n int) Job {
	j := emptyJob(fmt.Sprint("/", n))
	for slot := range abi.FenceSlot {
		p := Process{Slot: slot, Verified: slot%2 == 1, HostPID: 1 + slot, State: Live}
		if slot%4 == 0 {
			p.State = Dead
		}
		for d := range abi.Devices {
			p.Holdings = append(p.Holdings, Holding{Device: d, Total: uint64(slot)})
		}
		j.Processes = append(j.Processes, p)
	}
	j.Refusals, j.Deaths = make([]Refusal, abi.Refusals), make([]Death, abi.Deaths)
	return j
}

// However much is in the regions of a user, what is kept of it is bounded, what is not is counted,
// and what an operator asks for first is kept: those that the kernel confirms and hold most.
func TestQuota(t *testing.T) {
	const jobs = 40
	user, total, all := &quota{}, used{}, []used{}
	for n := range jobs {
		j := fullJob(n)
		has := user.cut(&j, used{})
		all = append(all, has)
		rows, texts := rowsOf(j.Processes...), len(j.Refusals)+len(j.Deaths)
		total.rows, total.texts = total.rows+rows, total.texts+texts
		expect.True(t, has == used{rows - jobRows, texts - jobTexts}, "it has", has, "and shows", rows, "and", texts)
		expect.Must(t, j.Omitted != nil && j.ProcessCount() == abi.FenceSlot && len(j.Refusals)+j.Omitted.Refusals == abi.Refusals && len(j.Deaths)+j.Omitted.Deaths == abi.Deaths,
			"job", n, len(j.Processes), "processes", len(j.Refusals), "refusals", len(j.Deaths), "deaths, and", j.Omitted)
		living := abi.FenceSlot - (abi.FenceSlot+3)/4
		expect.True(t, j.LivingCount() == living, "job", n, j.LivingCount(), "processes live, want", living)
		expect.True(t, len(j.Processes) != 0 && len(j.Refusals) != 0 && len(j.Deaths) != 0, "job", n, "shows nothing", j.Omitted)
		first := j.Processes[len(j.Processes)-1]
		expect.True(t, n != jobs-1 || first.Verified && first.Slot == abi.FenceSlot-2, "it shows", first)
		pids := j.driverPIDs()
		expect.True(t, len(pids) == abi.FenceSlot/2 && !slices.ContainsFunc(pids, func(pid int) bool { return pid%2 == 1 }), "the kernel confirms", len(pids), "processes")
	}
	expect.True(t, total.rows <= userRows+jobs*jobRows && total.texts <= userTexts+jobs*jobTexts, total, "are kept")
	// A job that is read again has what it had.
	j := fullJob(0)
	expect.Equal(t, user.cut(&j, all[0]), all[0], "it had", "and has")
	for _, has := range all {
		user.giveBack(has)
	}
	expect.True(t, user.rows == 0 && user.texts == 0, user.rows, "and", user.texts, "are kept of nothing")
	if j := fullJob(0); (*quota)(nil).cut(&j, used{}) != (used{}) || j.Omitted != nil || len(j.driverPIDs()) != abi.FenceSlot/2 {
		t.Errorf("a job of this user was cut: %+v", j.Omitted)
	}
}

// claimAll has a region claim that all of its slots are taken.
func claimAll(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	status := binary.LittleEndian.AppendUint64(nil, uint64(abi.MakeStatus(1, abi.SlotActive)))
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, abi.Slots), observer.Offset("Header", "HighWater"))
	for slot := range abi.FenceSlot {
		_, err2 := f.WriteAt(status, observer.Offset("Status", slot))
		err = errors.Join(err, err2)
	}
	expect.OK(t, err)
}

// A look at all users' jobs is bounded for each, says so, and a look at one job is not.
func TestFloodOfJobs(t *testing.T) {
	dir, _ := shared(t)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	const jobs = userRows/abi.FenceSlot + 3
	path := ""
	for n := range jobs {
		folder := filepath.Join(places.Runtime, fmt.Sprint(os.Geteuid()), "ration", fmt.Sprint("job-", n))
		expect.OK(t, os.MkdirAll(folder, 0o700))
		path = makeRegionAt(t, filepath.Join(folder, "region"))
		claimAll(t, path)
	}
	check := func(all []Job) {
		t.Helper()
		m := Machine{Jobs: slices.DeleteFunc(slices.Clone(all), func(j Job) bool { return !strings.HasPrefix(j.Path, dir) })}
		m.addFloods()
		shown, found, omitted := 0, len(m.Jobs), 0
		for i := range m.Jobs {
			j := &m.Jobs[i]
			shown += len(j.Processes)
			omitted += j.ProcessCount() - len(j.Processes)
		}
		expect.True(t, found == jobs && shown <= userRows+jobs*jobRows && shown+omitted == jobs*abi.FenceSlot, found, "jobs", shown, "processes, and", omitted, "more")
		text := fmt.Sprintf("%d processes", omitted)
		if !slices.ContainsFunc(m.Findings, func(f Finding) bool {
			return f.Kind == Flood && strings.Contains(strings.ReplaceAll(f.Text, ",", ""), text)
		}) {
			t.Errorf("no finding has %s: %+v", text, m.Findings)
		}
	}
	t.Setenv(job.EnvFolder, filepath.Join(dir, "own"))
	folders, _ := places.Folders()
	once := newUserScan(folders[0].UID, "a user", &quota{}) // with any time, unlike that of Read
	once.once, once.paths = true, folders[0].Paths
	check(once.readOnce().jobs)
	r := newScanner(job.ScanOptions{})
	defer r.Close()
	r.userPaths, r.allUsers = places, func() bool { return true }
	for range 2 {
		m, _, err := r.scan(true)
		expect.OK(t, err)
		if !slices.ContainsFunc(m.Findings, func(f Finding) bool { return f.Kind == Unanswering }) { // within two seconds, here
			check(m.Jobs)
		}
	}
	if j, err := ReadJob(path); err != nil || len(j.Processes) != abi.FenceSlot || j.Omitted != nil {
		t.Errorf("got %d processes and %+v, %v", len(j.Processes), j.Omitted, err)
	}
}

// So is a region that is found by a lock only.
func TestFloodOfLocked(t *testing.T) {
	path := makeRegionAt(t, filepath.Join(t.TempDir(), "region"))
	claimAll(t, path)
	f, err := os.Open(path)
	expect.OK(t, err)
	defer f.Close()
	var st unix.Stat_t
	expect.OK(t, unix.Fstat(int(f.Fd()), &st))
	q := &quota{used: used{rows: userRows - 10}}
	u := newUserScan(0, "a region", q)
	u.once, u.locked = true, &job.LockedFile{ID: job.FileOf(&st), PIDs: []int{os.Getpid()}}
	got := u.readOnce()
	expect.True(t, len(got.jobs) == 1 && len(got.jobs[0].Processes) == jobRows+10 && got.jobs[0].ProcessCount() == abi.FenceSlot && q.rows == userRows,
		"got", got.jobs, "and", q.rows, "rows")
	q.left, u.partial = func() bool { return false }, nil
	again := u.readOnce()
	expect.True(t, len(again.jobs) == 0 && again.cut, "read, though nothing of it is kept", again.jobs)
}

// A user of whom nothing more is kept is not read to the end, once that has taken long enough.
func TestSpentQuota(t *testing.T) {
	dir := t.TempDir()
	places := job.Paths{Runtime: dir, Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc")}
	for n := range 5 {
		folder := filepath.Join(dir, fmt.Sprint(os.Geteuid()), "ration", fmt.Sprint("job-", n))
		expect.OK(t, os.MkdirAll(folder, 0o700))
		makeRegionAt(t, filepath.Join(folder, "region"))
	}
	folders, _ := places.Folders()
	for name, c := range map[string]struct {
		rows, texts int
		left        bool
		want        int
	}{
		"nothing kept, no time": {0, 0, false, 5}, "much kept, no time": {userRows - 2*jobRows, userTexts - 2*jobTexts, false, 5},
		"all kept, and time": {userRows, userTexts, true, 5}, "all rows kept": {userRows, 0, false, 0}, "all texts kept": {0, userTexts, false, 0},
	} {
		u := newUserScan(folders[0].UID, "a user", &quota{used: used{c.rows, c.texts}, left: func() bool { return c.left }})
		u.once, u.paths = true, folders[0].Paths
		got := u.readOnce()
		expect.True(t, len(got.jobs) == c.want && got.cut == (c.want == 0), name, len(got.jobs), "jobs, cut is", got.cut)
	}
}
