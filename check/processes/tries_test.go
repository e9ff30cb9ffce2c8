package processes

import (
	"fmt"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A reader whose account is written anew at every reading tries ReadTries times, no more
// and no less, and marks and counts the result it has then. The reader stops between its
// two readings, each time, and the phase is moved meanwhile.
func TestBoundedRetry(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		for _, moves := range []int{0, 1, abi.ReadTries - 1, abi.ReadTries, 2 * abi.ReadTries} {
			path := newPath(t)
			a := start(t, mix, 1)
			slot := a.join(path, "a", mib)
			a.OK("charge 0 data %d", piece)
			file := newTenant(t, path)

			v := faulty(t, mix, 0, abi.ReadCopied, 1, "stops")
			v.OK("open %s", path)
			answer, stops := v.eachStop("holdings 0", func(stops int) {
				if stops <= moves { // by one whole change
					file.word(file.read("Accounts", 0, slot, "Phase")+abi.Phases, "Accounts", 0, slot, "Phase")
				}
			})
			want, suffix, best := min(moves+1, abi.ReadTries), "", 0
			if moves >= abi.ReadTries {
				suffix, best = ":best-effort", 1
			}
			field := fmt.Sprintf("%d:%d:0:0:%d:0%s", slot, piece, piece, suffix)
			expect.True(t, stops == want && answer.line == "ok "+field,
				moves, "moves", answer, "after", stops, "readings; want", field, "after", want)
			c := v.OK("counters")
			expect.True(t, c.Int("retries") == min(moves, abi.ReadTries) && c.Int("best") == best, moves, "moves", c)
			v.Kill()
			a.Quit()
		}
	})
}

// A process of the job that keeps writing into a dead process's account does not keep a
// reaper busy for ever: the reaper tries ReapTries times, no more and no less, and leaves
// the account to the next.
func TestBoundedReap(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		for _, c := range []struct {
			name  string
			point abi.Failpoint
			words func(n uint64) map[string]uint64 // what is written at the n-th stop, by field
		}{
			{"settle", abi.ReapJudged, func(n uint64) map[string]uint64 {
				return map[string]uint64{"Used": uint64(abi.MakeUsed(2*n+100, 1)), "Pend": uint64(abi.MakePend(2*n+101, 0))}
			}},
			{"note", abi.NoteRead, func(n uint64) map[string]uint64 { return map[string]uint64{"Done": n + 1000} }},
		} {
			for _, moves := range []int{0, 10, 2 * abi.ReapTries} {
				path := newPath(t)
				a := start(t, mix, 1)
				slot := a.join(path, "a", mib)
				a.OK("charge 0 data %d", piece)
				a.OK("charge 0 data %d", piece) // not its first change, which it notes itself
				a.Kill()
				file := newTenant(t, path)
				v := faulty(t, mix, 0, c.point, 1, "stops")
				v.OK("open %s", path)
				answer, stops := v.eachStop("reap", func(stops int) {
					if stops <= moves {
						for field, value := range c.words(uint64(stops)) {
							file.word(value, "Accounts", 0, slot, field)
						}
					}
				})
				freed := answer.Int("slots")
				t.Logf("%s, %d moves", c.name, moves)
				gaveUp, settled := stops == abi.ReapTries && freed == 0, stops >= moves && stops <= moves+20 && freed == 1
				expect.True(t, (moves <= abi.ReapTries || gaveUp) && (moves >= abi.ReapTries || settled),
					stops, "tries, and", freed, "slots are free")
				v.Kill()
				next := start(t, mix, 1) // finds it as a reaper that died would leave it
				next.OK("open %s", path)
				next.reaps(1 - freed)
				next.Quit()
			}
		}
	})
}
