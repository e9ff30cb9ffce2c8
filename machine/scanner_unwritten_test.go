package machine

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
)

// A refusal that was read in the middle of being written is shown when it is written, though no word
// that tells of changes changes then. One that never will be does not have the job read for ever.
func TestScannerSeesWhatWasBeingWritten(t *testing.T) {
	r, dir := scannerAt(t)
	_, slot := member(t, "train")
	if err := slot.Charge(0, abi.Data, 1<<50); err == nil {
		t.Fatal("there is no limit")
	}
	path := filepath.Join(dir, "train", job.RegionName)
	rings, _ := reflect.TypeFor[abi.Region]().FieldByName("Refusals")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	word := make([]byte, 8)
	if _, err := f.ReadAt(word, int64(rings.Offset)); err != nil {
		t.Fatal(err)
	}
	write := func(turn uint64) { // of the first refusal: 1 while it is written, 2 when it is
		t.Helper()
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, turn), int64(rings.Offset)); err != nil {
			t.Fatal(err)
		}
	}
	if turn := binary.NativeEndian.Uint64(word); turn != 2 {
		t.Fatalf("the refusal is at %d", turn)
	}
	shown := func() int {
		t.Helper()
		if u := r.users[ownUser]; u != nil { // not the machine's speed is tested
			u.state.rested, u.state.jobs[path].due = time.Time{}, time.Time{}
		}
		m, _ := mustScan(t, r)
		return len(m.Jobs[0].Refusals)
	}
	write(1)
	if n := shown(); n != 0 || r.due.IsZero() {
		t.Fatalf("%d refusals, and another look at %v", n, r.due)
	}
	write(2)
	if n := shown(); n != 1 || !r.due.IsZero() {
		t.Fatalf("%d refusals, and another look at %v", n, r.due)
	}
	write(1)
	w := r.users[ownUser].state.jobs[path]
	w.sum++ // so that it is read
	shown()
	w.writingSince = w.writingSince.Add(-settleTime)
	reads := w.reads
	shown()
	expect.True(t, w.reads == reads && r.due.IsZero(), "what will never be written had it read", w.reads-reads, "times")
}
