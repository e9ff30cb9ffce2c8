package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

func TestCompute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	var opt region.Options
	opt.Limits.Compute[0], opt.Limits.ComputeMax[0], opt.Limits.Round = 30, 50, 10_000
	opt.Limits.ComputeMax[1] = 40
	r, err := region.Open(path, opt)
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("me")
	expect.OK(t, err)
	expect.OK(t, errors.Join(slot.Charge(0, abi.Context, 1<<20), slot.Charge(1, abi.Context, 1<<20), slot.Charge(2, abi.Context, 1<<20)))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer file.Close()
	seen := map[string]bool{}
	reason := func(state int) string {
		text := region.ProcessCompute{Slice: abi.MakeSlice(0, state)}.NotEnforced()
		expect.True(t, !seen[text], "two states have the reason", text)
		seen[text] = true
		return text
	}
	now := monotonic()
	for age, want := range map[uint64]bool{0: true, abi.WorkLeaseUS - 1: true, abi.WorkLeaseUS: false} {
		expect.True(t, hasWork(abi.MakeWork(now-age, 1, false), now) == want, "a sign of", age, "µs ago counts", !want)
	}
	recent, long := now+1_000_000_000, now-2*abi.WorkLeaseUS // of the future: it counts however long this takes
	for _, c := range []struct {
		name string
		has  region.ProcessCompute
		want ProcessCompute
	}{
		{"at work", region.ProcessCompute{Work: abi.MakeWork(recent, 2, false), Slice: abi.MakeSlice(1500, abi.SliceKept), Used: 7, Waited: 9},
			ProcessCompute{Held: true, State: Kept, Slice: 1500, Working: 2, Used: 7, Waited: 9}},
		{"idle", region.ProcessCompute{Work: abi.MakeWork(long, 2, false), Slice: abi.MakeSlice(3000, abi.SliceKept), Used: 7, Waited: 9},
			ProcessCompute{Held: true, State: Kept, Slice: 3000, Used: 7, Waited: 9}},
		{"waiting", region.ProcessCompute{Work: abi.MakeWork(long, 1, true), Slice: abi.MakeSlice(3000, abi.SliceKept), Used: 7, Waited: 9},
			ProcessCompute{Held: true, State: Kept, Slice: 3000, Working: 1, Waiting: true, Used: 7, Waited: 9}},
		{"unseen", region.ProcessCompute{Slice: abi.MakeSlice(0, abi.SliceUnseen)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceUnseen)}},
		{"unknown", region.ProcessCompute{Slice: abi.MakeSlice(0, abi.SliceUnknown)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceUnknown)}},
		{"refused", region.ProcessCompute{Slice: abi.MakeSlice(2048, abi.SliceRefused)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceRefused), Slice: 2048}},
		{"lost", region.ProcessCompute{Slice: abi.MakeSlice(2048, abi.SliceLost)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceLost), Slice: 2048}},
		{"no share when it last called", region.ProcessCompute{Slice: abi.MakeSlice(0, abi.SliceReady)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceReady)}},
		{"crowded", region.ProcessCompute{Slice: abi.MakeSlice(6000, abi.SliceCrowded)}, ProcessCompute{Held: true, State: NotEnforced, Reason: reason(abi.SliceCrowded), Slice: 6000}},
		{"started before", region.ProcessCompute{}, ProcessCompute{State: NotEnforced, Reason: reason(abi.SliceNone)}},
	} {
		expect.OK(t, observer.WriteCompute(file, 0, slot.Index(), c.has))
		s, err := ReadJob(path)
		expect.Must(t, err == nil && len(s.Devices) == 3 && len(s.Processes[0].Holdings) == 3, c.name, s, err)
		job := Compute{Share: 30, Max: 50, Round: 10_000, Working: c.want.Working, Used: c.want.Used, Waited: c.want.Waited}
		if got := s.Devices[0].Compute; got == nil || *got != job {
			t.Errorf("%s: the job has %+v, want %+v", c.name, got, job)
		}
		if got := s.Processes[0].Holdings[0].Compute; got == nil || *got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		// A cap is no share: there is no slice to be kept.
		if got := s.Processes[0].Holdings[1].Compute; got == nil || *got != (ProcessCompute{}) {
			t.Errorf("%s: with a cap alone: %+v", c.name, got)
		}
		expect.True(t, s.Devices[2].Compute == nil && s.Processes[0].Holdings[2].Compute == nil,
			c.name, "there is a device with neither, which has", s.Devices[2].Compute)
	}
	expect.OK(t, observer.WriteCompute(file, 0, slot.Index(), region.ProcessCompute{Slice: abi.MakeSlice(0, 77)}))
	if s, err := ReadJob(path); err != nil || s.Processes[0].Holdings[0].Compute.State != NotEnforced {
		t.Errorf("of a newer version: %+v, %v", s.Processes[0].Holdings[0].Compute, err)
	}
}

// The least sign of work that counts, and the first that does not.
func TestHasWork(t *testing.T) {
	const now = 10 * abi.WorkLeaseUS
	for work, want := range map[abi.Work]bool{
		0: false,
		abi.MakeWork(now-abi.WorkLeaseUS+1, 1, false): true,
		abi.MakeWork(now-abi.WorkLeaseUS, 1, false):   false,
		abi.MakeWork(now-abi.WorkLeaseUS, 1, true):    true,
		abi.MakeWork(now+5, 1, false):                 true,
	} {
		expect.Equal(t, hasWork(work, now), want, work.Time())
	}
}

func TestComputeText(t *testing.T) {
	for _, c := range []struct {
		compute         *Compute
		short, sentence string
	}{
		{&Compute{Share: 30, Round: 20_000}, "30%", "at least 30 % of its time, in rounds of 20 ms; 0 contexts with work"},
		{&Compute{Share: 30, Max: 50, Round: 2500, Working: 1, Used: 1.5e9, Waited: 2e8}, "30%≤50%",
			"at least 30 %, at most 50 % of its time, in rounds of 2.5 ms; 1 context with work; used 1.5 s, waited 200 ms"},
		{&Compute{Max: 50, Round: 20_000, Working: 4}, "≤50%", "at most 50 % of its time; 4 contexts with work; used 0 s, waited 0 s"},
	} {
		expect.Equal(t, c.compute.Short(), c.short)
		expect.Equal(t, c.compute.Sentence(), c.sentence)
	}
	expect.Equal(t, (*Compute)(nil).Short(), "")
}

// A sign of work expires without a change of the region. So the job is read again, or it would seem to work until the
// next full read.
func TestWorkExpires(t *testing.T) {
	now := time.Now()
	job := func(working int, ago time.Duration) *tracked {
		return &tracked{known: true, read: now.Add(-ago), job: Job{Devices: []Device{{Device: 0}, {Device: 1, Compute: &Compute{Max: 50, Working: working}}}}}
	}
	expect.True(t, job(1, workAge).again(now), "a job at work is not read again")
	expect.True(t, !job(1, workAge-1).again(now), "a job at work is read all the time")
	expect.True(t, !job(0, time.Minute).again(now), "a job without work is read again")
}
