package machine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
)

// A run that has ended is known by the copy of its region beside the user's record. While both are there it is one job,
// and no record takes the identity of a run, or of another record.
func TestRecordsOfRuns(t *testing.T) {
	const run = "/run/ration/user-4001-train/region"
	created := timeOf(10)
	record := Job{Path: "/run/user/4001/ration/train/region", UID: 4001, State: Ended, Created: created, countedIn: run}
	record.ranAs = record.runOfRecord()
	expect.Equal(t, record.ID(), JobID{run, created}, "the record of a run")

	live := Job{Path: run, UID: 4001, State: Running, Created: created}
	for _, own := range []bool{false, true} {
		m := Machine{Jobs: []Job{record, live}}
		m.dropRecords(own)
		expect.True(t, len(m.Jobs) == 1 && m.Jobs[0].State == Running, "while the run is there", m.Jobs)
	}

	over, left := record, live
	over.Exit, left.State = &Exit{Status: 7}, Idle
	for _, own := range []bool{false, true} {
		m := Machine{Jobs: []Job{left, over}}
		m.dropRecords(own)
		expect.True(t, len(m.Jobs) == 1 && (m.Jobs[0].Exit != nil) == own, "after its command has ended, to its user", own, m.Jobs)
	}
	earlier := over
	earlier.Created = timeOf(5)
	m := Machine{Jobs: []Job{left, earlier}}
	m.dropRecords(true)
	expect.True(t, len(m.Jobs) == 1 && m.Jobs[0].State == Idle, "beside the record of an earlier run of that name", m.Jobs)

	other := record
	other.Path = "/tmp/ration-4001/train/region"
	m = Machine{Jobs: []Job{record, other, {Path: "elsewhere"}}}
	m.dropRecords(false)
	expect.True(t, len(m.Jobs) == 2 && m.Jobs[0].Path == record.Path, "after the run", m.Jobs)

	for name, claim := range map[string]Job{
		"of another user": {Path: record.Path, UID: 4002, countedIn: run},
		"of another name": {Path: "/run/user/4001/ration/other/region", UID: 4001, countedIn: run},
		"of all programs": {Path: record.Path, UID: 4001, countedIn: "/run/ration/user-4001/region"},
		"elsewhere":       {Path: record.Path, UID: 4001, countedIn: "/tmp/user-4001-train/region"},
		"of no policy":    {Path: record.Path, UID: 4001},
	} {
		expect.Equal(t, claim.runOfRecord(), "", name)
	}
}

// A run that has disappeared stays in the list while its user's folder, which has its record, is not read: then its end
// is reported with the status. It does not stay for longer than a scan may take.
func TestScannerReadsRecordsFirst(t *testing.T) {
	r, dir := scannerAt(t)
	r.userPaths = job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	r.allUsers = func() bool { return true }
	expect.OK(t, os.MkdirAll(filepath.Join(r.userPaths.Runtime, "61000"), 0o700))
	run := Job{Path: job.RunPath(61000, "train"), UID: 61000, State: Running, Created: timeOf(10)}
	shown := func() bool {
		m, _ := mustScan(t, r)
		r.base.Jobs = m.Jobs
		return slices.ContainsFunc(m.Jobs, func(j Job) bool { return j.Path == run.Path })
	}
	shown()
	u := r.users[61000]

	for name, read := range map[string]func(){
		"the folder was read":       func() { u.running, u.state.rested = false, time.Time{} },
		"it is not read for ever":   func() { r.unread[run.ID()] = time.Now().Add(-r.timeout) },
		"the user is there no more": func() { u.running = false; r.found = time.Time{}; expect.OK(t, os.RemoveAll(r.userPaths.Runtime)) },
	} {
		if u.running = true; r.users[61000] == nil {
			t.Fatal(name)
		}
		r.base.Jobs, r.unread = []Job{run}, map[JobID]time.Time{run.ID(): time.Now()}
		for range 2 {
			expect.True(t, shown(), "before", name)
		}
		read()
		expect.True(t, !shown() && len(r.unread) <= 1, name)
		_, _ = mustScan(t, r)
		expect.Equal(t, len(r.unread), 0, name)
		u.running = false
		expect.OK(t, os.MkdirAll(filepath.Join(r.userPaths.Runtime, "61000"), 0o700))
		r.found = time.Time{}
		shown()
		u = r.users[61000]
	}
}

// The record of a run is its user's, who may have changed the labels that the service has checked.
func TestRecordsKeepLabels(t *testing.T) {
	const run = "/run/ration/user-4001-train/region"
	was := Job{Path: run, UID: 4001, State: Running, Created: timeOf(10), Labels: map[string]string{job.Project: "vision"}}
	record := Job{Path: "/run/user/4001/ration/train/region", UID: 4001, State: Ended, Created: was.Created, countedIn: run, Labels: map[string]string{job.Project: "bio"}, Claimed: true}
	record.ranAs = record.runOfRecord()
	later := record
	later.Created = timeOf(20)
	m := Machine{Jobs: []Job{record, later}}
	for range 2 { // also when the run is long gone
		m.keepLabels([]Job{was})
		expect.True(t, m.Jobs[0].Labels[job.Project] == "vision" && !m.Jobs[0].Claimed, "of the run", m.Jobs[0])
		expect.True(t, m.Jobs[1].Labels[job.Project] == "bio" && m.Jobs[1].Claimed, "of another run of that name", m.Jobs[1])
		was = m.Jobs[0]
		m.Jobs = []Job{record, later}
	}
}

// A run is its user's, also if its files were removed while it was read: its record is in the folders of that user.
func TestOwnerOfRemovedRun(t *testing.T) {
	dir, err := unix.Open(t.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	expect.OK(t, err)
	defer unix.Close(dir)
	j := emptyJob(job.RunPath(61000, "train"))
	j.addLaunch(job.Launch{UID: -1}, dir, job.RegionName)
	expect.Equal(t, j.UID, 61000)
}

// The project that a run was given with is known with the run, before its record is read, and stays the same after that.
func TestClaimedProjectOfRun(t *testing.T) {
	dir, err := unix.Open(t.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	expect.OK(t, err)
	defer unix.Close(dir)
	run := emptyJob(job.RunPath(61000, "train"))
	run.addLaunch(job.Launch{UID: 0, Info: job.Info{Labels: map[string]string{job.Project: "web"}, Claimed: true}}, dir, job.RegionName)
	expect.True(t, run.Labels[job.Project] == "web" && run.Claimed, run)
	m := Machine{Jobs: []Job{run}}
	m.addRecords([]Job{{countedIn: run.Path, Launcher: run.Owner, Command: []string{"train"}, Claimed: true, Labels: map[string]string{job.Project: "bio", "team": "x"}}})
	got := m.Jobs[0]
	expect.True(t, got.Labels[job.Project] == "web" && got.Labels["team"] == "x" && got.Claimed && len(got.Command) == 1, got)
}
