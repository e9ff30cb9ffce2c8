package processes

import (
	"encoding/binary"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"ration/check/harness"
	"ration/internal/abi"
)

// phaseAt is where in the file the phase of a slot's account on device 0 is.
func phaseAt(slot int) int64 {
	accounts, _ := reflect.TypeFor[abi.Region]().FieldByName("Accounts")
	phase, _ := reflect.TypeFor[abi.Account]().FieldByName("Phase")
	return int64(accounts.Offset) + int64(slot)*int64(reflect.TypeFor[abi.Account]().Size()) + int64(phase.Offset)
}

// A reader whose account is written anew at every look tries a hundred times, no more
// and no less, and marks and counts what it has then. The reader stops between its two
// looks, each time, and the phase is moved meanwhile.
func TestBoundedRetry(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		for _, moves := range []int{0, 1, abi.ReadTries - 1, abi.ReadTries, 2 * abi.ReadTries} {
			path := newPath(t)
			a := start(t, mix, 1)
			a.OK("open %s 0=%d", path, mib)
			slot := a.OK("claim a").Int("slot")
			a.OK("charge 0 data %d", piece)

			v := harness.Start(t, mix.Of(0).Fault, harness.Fault(abi.ReadCopied, 1, "stops"))
			v.OK("open %s", path)
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			stopped := v.StoppedOrDead()
			v.Tell("holdings 0")
			looks := 0
			var answer string
			for done := false; !done; {
				select {
				case <-stopped:
					if looks++; looks <= moves {
						move(t, file, phaseAt(slot))
					}
					v.Continue()
					stopped = v.StoppedOrDead()
				case answer = <-v.Lines():
					done = true
				case <-time.After(harness.Bound):
					t.Fatal("neither an answer nor a stop")
				}
			}
			wantLooks, best := min(moves+1, abi.ReadTries), 0
			if moves >= abi.ReadTries {
				best = 1
			}
			if looks != wantLooks {
				t.Errorf("%d moves: %d looks, not %d", moves, looks, wantLooks)
			}
			if got := strings.HasSuffix(answer, ":best-effort"); got != (best == 1) {
				t.Errorf("%d moves: %s", moves, answer)
			}
			c := v.OK("counters")
			if c.Int("retries") != min(moves, abi.ReadTries) || c.Int("best") != best {
				t.Errorf("%d moves: %s", moves, c)
			}
			v.Kill()
			a.Quit()
		}
	})
}

// move moves a phase on by one whole change.
func move(t *testing.T, file *os.File, at int64) {
	t.Helper()
	var b [8]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+abi.Phases)
	if _, err := file.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}
