package machine

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

func TestReadRegion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	if s, err := readRegion(path, budgetForAll()); !errors.Is(err, fs.ErrNotExist) || s.Err() != err || s.Error == "" || s.Path != path {
		t.Errorf("got %+v, %v for a missing region", s, err)
	}
	var opt region.Options
	opt.Limits.Memory[1] = abi.MakeLimit(1 << 30)
	r, err := region.Open(path, opt)
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("me")
	expect.OK(t, err)
	expect.OK(t, errors.Join(slot.Charge(1, abi.Module, 1<<20), slot.Charge(1, abi.Data, 1<<20)))
	if err := slot.Charge(1, abi.Data, 1<<40); !errors.Is(err, region.ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	s, err := ReadJob(path)
	expect.OK(t, err)
	expect.True(t, len(s.Devices) == 1 && s.Devices[0] == (Device{Device: 1, Limited: true, Limit: 1 << 30, Used: 2 << 20, Peak: 2 << 20, Refused: 1}),
		"got devices", s.Devices)
	expect.Must(t, len(s.Processes) == 1 && s.Processes[0].PID == os.Getpid() && s.Processes[0].State == Live && s.Processes[0].Name == "me",
		"got processes", s.Processes)
	want := Holding{Device: 1, Total: 2 << 20, Module: 1 << 20, Data: 1 << 20, Peak: 2 << 20}
	h := s.Processes[0].Holdings
	expect.True(t, len(h) == 1 && h[0] == want, "holdings", h)
	f := s.Refusals
	expect.True(t, len(f) == 1 && f[0].Asked == 1<<40 && f[0].Own == 2<<20 && len(f[0].Top) == 1, "refusals", f)
}

// The owner of a region whose file is removed while it is read is known: the region has events, and accounts.
func TestOwnerOfRegionThatIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	_, err = r.Claim("me")
	expect.OK(t, err)
	asked := 0
	p := safepath.Clock{Now: func() time.Time {
		if asked++; asked == 3 { // after the budget was made and divided
			expect.OK(t, os.Remove(path))
		}
		return time.Unix(0, 0)
	}}.For(time.Hour)
	j, err := readRegion(path, p)
	expect.OK(t, err)
	expect.True(t, asked >= 3 && j.UID == os.Geteuid() && j.Owner == proc.UserName(os.Geteuid()), asked, j.UID, j.Owner)
}

// A job shows how much memory its processes have exported, and that a dead process's stays charged.
func TestExported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("maker")
	expect.OK(t, err)
	expect.OK(t, slot.Charge(0, abi.Data, 3<<20))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	set := func(value uint64, field ...any) {
		_, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), observer.Offset(field...))
		expect.OK(t, err)
	}
	set(1<<20/abi.Unit, "Accounts", 0, slot.Index(), "Exported")
	j, err := ReadJob(path)
	expect.OK(t, err)
	expect.True(t, len(j.Processes) == 1 && !j.Processes[0].Lent && j.Processes[0].Holdings[0].Exported == 1<<20, "got", j.Processes)
	set(uint64(abi.MakeStatus(1, abi.SlotLent)), "Status", slot.Index())
	j, err = ReadJob(path)
	expect.OK(t, err)
	expect.True(t, len(j.Processes) == 1 && j.Processes[0].Lent && j.Processes[0].State == Dead && j.Processes[0].Holdings[0].Exported == 1<<20,
		"got", j.Processes)
}

// TestRead has a job that is readable, one that has not begun, one that is
// damaged, and a region outside the folder of jobs.
func TestRead(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	outside := filepath.Join(t.TempDir(), "region")
	t.Setenv(job.EnvRegion, outside)
	path, err := job.MakeFolder("readable")
	expect.OK(t, err)
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	for name, content := range map[string]string{"not-begun": "", "damaged": "x"} {
		path, err := job.MakeFolder(name)
		expect.OK(t, err)
		expect.OK(t, os.WriteFile(path, []byte(content), 0o600))
	}
	expect.OK(t, os.WriteFile(outside, nil, 0o600))
	m, err := Read()
	expect.OK(t, err)
	got := map[string]error{}
	for _, s := range m.Jobs {
		got[s.Name] = s.Err()
	}
	expect.True(t, len(got) == 3 && got["readable"] == nil && got["damaged"] != nil && errors.Is(got[""], ErrNotReady), "got", got)
}

func TestSentence(t *testing.T) {
	all := []Process{
		{Slot: 0, Verified: true, PID: 10, Name: "hog", Joined: timeOf(100)},
		{Slot: 1, PID: 11, Name: "greedy", Joined: timeOf(100)},
		{Slot: 2, PID: 1, Name: "in one container", Joined: timeOf(100)},
		{Slot: 3, PID: 1, Name: "in another", Joined: timeOf(100)},
		{Slot: 4, PID: 12, Name: "too late", Joined: timeOf(300)},
	}
	f := Refusal{Time: timeOf(200), Slot: 1, PID: 11, Asked: 4 << 30, Held: 7 << 30, Limit: 10 << 30, Own: 1 << 20,
		Top: []Holder{{PID: 10, Bytes: 3 << 30}, {PID: 1, Bytes: 2 << 30}, {PID: 12, Bytes: 1 << 30}}}
	const want = "greedy (pid 11, unconfirmed) asked for 4 GiB with 3 GiB free of 10 GiB; " +
		"most was held by hog (pid 10) 3 GiB, pid 1 (ended) 2 GiB, pid 12 (ended) 1 GiB; it held 1 MiB itself"
	expect.Equal(t, f.Sentence(all), want)
	expect.Equal(t, (&Refusal{Held: 3, Limit: 2}).Free(), 0, "bytes are free of a limit that is exceeded")
	f.Slot = 2
	expect.Equal(t, f.RequesterName(all), "", "for a slot that has another owner by now")
}

func TestGroupRefusals(t *testing.T) {
	again := func(at int64, asked uint64) Refusal { return Refusal{Time: timeOf(at), PID: 1, Asked: asked} }
	got := GroupRefusals([]Refusal{again(9, 5), again(8, 5), again(7, 4), again(6, 5)})
	expect.True(t, len(got) == 3 && got[0].Times == 2 && got[0].First == timeOf(8) && got[0].Time == timeOf(9) && got[1].Times == 1, "got", got)
}
