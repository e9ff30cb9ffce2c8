package region

import (
	"os"
	"sync"
	"testing"
	"time"

	"ration/check/testenv"
	"ration/internal/abi"
)

// A file that is cut short under a thread which has the turn leaves the turn free: the
// other threads get their error, too.
func TestCutShortInTurn(t *testing.T) {
	testenv.NeedFaultAddress(t)
	if raced {
		t.Skip("the race detector reads and writes in C, where Go gets no fault")
	}
	for round := range 100 {
		r := open(t, 10*MiB)
		s := claim(t, r)
		must(t, s.Charge(0, abi.Data, MiB))
		var threads sync.WaitGroup
		for range 3 {
			threads.Go(func() {
				for !r.broken.Load() {
					if s.Charge(0, abi.Data, 6*MiB) == nil {
						_ = s.Return(0, abi.Data, 6*MiB)
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * time.Microsecond) // somewhere in the middle
		must(t, os.Truncate(r.Path(), 0))
		threads.Wait()
	}
}
