package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
)

// Watch returns first what is known, then each change, with the machine after it; and says once why the
// jobs cannot be listed.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(job.EnvFolder, dir)
	t.Setenv(job.EnvRegion, "")
	_, slot := member(t, "train")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var kinds []string
	var errs []error
	step := 0
	for e, err := range Watch(ctx) {
		if err != nil {
			if errs = append(errs, err); len(errs) == 1 {
				go func() { // a little later, so that a second error would be seen
					time.Sleep(2 * watchInterval)
					cancel()
				}()
			}
			continue
		}
		kinds = append(kinds, e.Kind)
		expect.Must(t, e.Machine != nil && len(e.Machine.Jobs) == 1, e.Kind, e.Machine)
		if e.Kind != Changed {
			continue
		}
		switch step++; step {
		case 1:
			expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
			_ = slot.Charge(0, abi.Data, 1<<50) // is refused
		case 2:
			expect.Equal(t, e.Machine.Jobs[0].Devices[0].Used, 1<<20, "used")
			expect.OK(t, os.Chmod(dir, 0o777))
		}
	}
	want := []string{JobStarted, Changed, RequestRefused, Changed}
	expect.True(t, slices.Equal(kinds, want), kinds, "want", want)
	expect.True(t, len(errs) == 1 && errors.Is(errs[0], ErrFolder), "got", errs)
}

// A job that is unchanged is the same value in the next result.
func TestScanSharesJobs(t *testing.T) {
	s, _ := scannerAt(t)
	member(t, "one")
	_, slot := member(t, "two")
	scan := func() job.ScanResult[Machine, Event] {
		t.Helper()
		r, err := s.Scan(true)
		expect.Must(t, err == nil && len(r.Machine.Jobs) == 2, r, err)
		return r
	}
	first := scan()
	again := scan()
	expect.True(t, !again.Changed && again.Machine == first.Machine && len(again.Events) == 0, "nothing has happened", again)
	s.users[ownUser].state.jobs[first.Machine.Jobs[1].Path].due = time.Time{}
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	second := scan()
	expect.True(t, second.Changed && &second.Machine.Jobs[0].Processes[0] == &first.Machine.Jobs[0].Processes[0] && second.Machine.Jobs[1].Held() == 1<<20 && first.Machine.Jobs[1].Held() == 0,
		first.Machine.Jobs, "then", second.Machine.Jobs)
}
