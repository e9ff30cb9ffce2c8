package processes

import (
	"testing"

	"ration/internal/region"
)

// A device's peak is what living processes had of it at once: bytes of the dead that no
// process has needed yet are no part of it.
func TestPeaksLeaveOutTheDead(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		peak := func(want uint64) {
			t.Helper()
			r, err := region.OpenReadOnly(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, got, err := r.Usage(0); got != want || err != nil {
				t.Errorf("the peak is %d, not %d (%v)", got, want, err)
			}
		}
		first, second := join(t, mix, 0, path, 10*mib), join(t, mix, 1, path)
		first.OK("charge 0 data %d", 3*mib)
		second.OK("charge 0 data %d", 2*mib)
		peak(5 * mib)
		first.Kill()
		second.Kill()
		heir := join(t, mix, 2, path)
		heir.OK("charge 0 data %d", 4*mib) // there is room, and the dead have 5 still
		peak(5 * mib)
		heir.OK("charge 0 data %d", 2*mib)
		peak(6 * mib)
		heir.OK("force 0 overhead %d", 1*mib)
		peak(7 * mib)
		heir.OK("return 0 data %d", 6*mib)
		heir.OK("charge 0 data %d", 6*mib)
		peak(7 * mib)
		heir.Quit()
		checkEmpty(t, path)
	})
}
