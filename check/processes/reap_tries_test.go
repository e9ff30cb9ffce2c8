package processes

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"ration/check/harness"
	"ration/internal/abi"
)

// reapWatched has a worker reap what another left, stop at a point each time, and scribble called at
// each stop, so many times at most. It returns how often it stopped, and how many slots it freed.
func reapWatched(t *testing.T, v *harness.Worker, moves int, scribble func(n uint64)) (stops, freed int) {
	t.Helper()
	stopped := v.StoppedOrDead()
	v.Tell("reap")
	for {
		select {
		case <-stopped:
			if stops++; stops <= moves {
				scribble(uint64(stops))
			}
			v.Continue()
			stopped = v.StoppedOrDead()
		case line := <-v.Lines():
			if _, err := fmt.Sscanf(line, "ok slots=%d", &freed); err != nil {
				t.Fatalf("it says %q", line)
			}
			return stops, freed
		case <-time.After(harness.Bound):
			t.Fatal("neither an answer nor a stop")
		}
	}
}

// A process of the job that writes into a dead one's account all the while keeps no reaper: it tries
// so often, no more and no less, and leaves the account to the next.
func TestBoundedReap(t *testing.T) {
	harness.Mixes(t, func(t *testing.T, mix harness.Mix) {
		for _, c := range []struct {
			name     string
			at       abi.Failpoint
			scribble func(word func(field string) func(uint64), n uint64)
		}{
			{"settle", abi.ReapJudged, func(word func(string) func(uint64), n uint64) {
				word("Used")(uint64(abi.MakeUsed(2*n+100, 1)))
				word("Pend")(uint64(abi.MakePend(2*n+101, 0)))
			}},
			{"note", abi.NoteRead, func(word func(string) func(uint64), n uint64) { word("Done")(n + 1000) }},
		} {
			for _, moves := range []int{0, 10, 2 * abi.ReapTries} {
				path := newPath(t)
				a := start(t, mix, 1)
				a.OK("open %s 0=%d", path, mib)
				slot := a.OK("claim a").Int("slot")
				a.OK("charge 0 data %d", piece)
				a.OK("charge 0 data %d", piece) // not its first change, which it notes itself
				a.Kill()
				file, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				v := harness.Start(t, mix.Of(0).Fault, harness.Fault(c.at, 1, "stops"))
				v.OK("open %s", path)
				stops, freed := reapWatched(t, v, moves, func(n uint64) {
					c.scribble(func(field string) func(uint64) {
						return func(value uint64) {
							if _, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, value), harness.Offset("Accounts", 0, slot, field)); err != nil {
								t.Fatal(err)
							}
						}
					}, n)
				})
				if moves > abi.ReapTries && (stops != abi.ReapTries || freed != 0) {
					t.Errorf("%s: %d tries, and %d slots are free", c.name, stops, freed)
				}
				if moves < abi.ReapTries && (stops < moves || stops > moves+20 || freed != 1) {
					t.Errorf("%s, %d moves: %d tries, and %d slots are free", c.name, moves, stops, freed)
				}
				v.Kill()
				next := start(t, mix, 1) // finds it as a reaper leaves it that died
				next.OK("open %s", path)
				if got := next.OK("reap").Int("slots"); got != 1-freed {
					t.Errorf("%s, %d moves: the next freed %d", c.name, moves, got)
				}
				next.Quit()
			}
		}
	})
}
