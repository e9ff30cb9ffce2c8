package launch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// newRecorder makes a region with one member, and a recorder of it that takes no samples by itself.
func newRecorder(t *testing.T, name string) *recorder {
	t.Helper()
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	slot, err := r.Claim(name)
	expect.OK(t, err)
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	rec := startRecorder(path)
	close(rec.quit)
	<-rec.done
	expect.Must(t, rec.err == nil, rec.err)
	t.Cleanup(func() { _ = rec.r.Close() })
	return rec
}

// A job that claims new processes without end is recorded up to a bound, and what there was no
// room for is counted.
func TestRecorderIsBounded(t *testing.T) {
	rec := newRecorder(t, "member")
	for i := range 3 * maxRecorded {
		o := owner{i % abi.Slots, int64(i) + 1}
		rec.record(o, 1, "flood")
		for d := range abi.Devices {
			rec.peak(account{o, d})
		}
	}
	expect.True(t, len(rec.recorded) == maxRecorded && len(rec.peaks) == maxRecorded,
		len(rec.recorded), "processes and", len(rec.peaks), "peaks are kept")
	full := rec.excess
	rec.sample()
	rec.dropped = max(rec.dropped, full)
	var s Summary
	err := rec.summarise(&s)
	expect.True(t, err == nil && s.Unrecorded == full && full >= 2*maxRecorded, s.Unrecorded, "are counted as unrecorded, of", full, err)
}

// Under a policy, a user's first program makes the region, after the recording has begun.
func TestRecorderBeginsBeforeRegion(t *testing.T) {
	none := startRecorder(filepath.Join(t.TempDir(), "none"))
	s := none.stop()
	expect.True(t, s.Error == "" && len(s.Processes) == 0, "without a region", s)

	path := filepath.Join(t.TempDir(), "region")
	rec := startRecorder(path)
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("first")
	expect.OK(t, err)
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	s = rec.stop()
	expect.True(t, s.Error == "" && len(s.Processes) == 1 && s.Processes[0].Total == 1<<20, "with one that is made later", s)
}

// The summary has the limit that a run had, although the policy's service has set it to 0 at the end.
func TestRecorderKeepsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	var opts region.Options
	opts.Limits.Memory[0], opts.Limits.Memory[1] = abi.MakeLimit(1<<30), abi.MakeLimit(0)
	r, err := region.Open(path, opts)
	expect.OK(t, err)
	defer r.Close()
	rec := startRecorder(path)
	expect.OK(t, r.SetLimit(0, abi.MakeLimit(0)))
	s := rec.stop()
	expect.Must(t, s.Error == "" && len(s.Devices) == 1, "a device that was never for the job is not in it", s)
	expect.True(t, s.Devices[0].Limited && s.Devices[0].Limit == 1<<30, s.Devices[0])
}

// The name that a process gives itself is not shown for it: the kernel's is, and the PID.
func TestRecorderConfirms(t *testing.T) {
	rec := newRecorder(t, "no such program")
	rec.record(owner{500, 1}, 1, "init")
	rec.peak(account{owner{500, 1}, 0}).Total = 1
	var s Summary
	err := rec.summarise(&s)
	expect.Must(t, err == nil && len(s.Processes) == 2, s, err)
	p := s.Processes[0]
	expect.True(t, p.Verified && p.PID == os.Getpid() && p.Name != "no such program" && p.Total == 1<<20, "a living process", p)
	p = s.Processes[1]
	expect.True(t, !p.Verified && p.PID == 1 && p.Name == "init", "a claim", p)
}

// However long a sample takes, no more than a tenth of the time is spent on them.
func TestRecorderPauses(t *testing.T) {
	for _, took := range []time.Duration{0, time.Millisecond, 200 * time.Millisecond, time.Minute} {
		pause := pauseAfter(took)
		expect.True(t, pause >= sampleInterval && took <= (took+pause)/10 && pause <= max(sampleInterval, 10*took),
			"a pause of", pause, "after", took)
	}
}
