package launch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

// newRecorder makes a region with one member, and a recorder of it that takes no samples by itself.
func newRecorder(t *testing.T, name string) *recorder {
	t.Helper()
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	slot, err := r.Claim(name)
	must(t, err)
	must(t, slot.Charge(0, abi.Data, 1<<20))
	rec := startRecorder(path)
	close(rec.quit)
	<-rec.done
	if rec.err != nil {
		t.Fatal(rec.err)
	}
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
	if len(rec.recorded) != maxRecorded || len(rec.peaks) != maxRecorded {
		t.Errorf("%d processes and %d peaks are kept", len(rec.recorded), len(rec.peaks))
	}
	full := rec.excess
	rec.sample()
	rec.dropped = max(rec.dropped, full)
	var s Summary
	if err := rec.summarise(&s); err != nil || s.Unrecorded != full || full < 2*maxRecorded {
		t.Errorf("%d are counted as unrecorded, of %d: %v", s.Unrecorded, full, err)
	}
}

// The name that a process gives itself is not shown for it: the kernel's is, and the PID.
func TestRecorderConfirms(t *testing.T) {
	rec := newRecorder(t, "no such program")
	rec.record(owner{500, 1}, 1, "init")
	rec.peak(account{owner{500, 1}, 0}).Total = 1
	var s Summary
	if err := rec.summarise(&s); err != nil || len(s.Processes) != 2 {
		t.Fatalf("got %+v, %v", s, err)
	}
	if p := s.Processes[0]; !p.Verified || p.PID != os.Getpid() || p.Name == "no such program" || p.Total != 1<<20 {
		t.Errorf("a living process: %+v", p)
	}
	if p := s.Processes[1]; p.Verified || p.PID != 1 || p.Name != "init" {
		t.Errorf("a claim: %+v", p)
	}
}

// However long a sample takes, no more than a tenth of the time is spent on them.
func TestRecorderPauses(t *testing.T) {
	for _, took := range []time.Duration{0, time.Millisecond, 200 * time.Millisecond, time.Minute} {
		pause := pauseAfter(took)
		if pause < sampleInterval || took > (took+pause)/10 || pause > max(sampleInterval, 10*took) {
			t.Errorf("a pause of %v after %v", pause, took)
		}
	}
}
