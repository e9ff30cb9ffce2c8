package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
	"ration/internal/safepath"
)

// A look is repeated until it agrees, and no more often than it may be.
func TestUntil(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		look   func(n int) (bool, error)
		exact  bool
		looked int
		err    error
	}{
		{"at once", func(int) (bool, error) { return true, nil }, true, 1, nil},
		{"at the third", func(n int) (bool, error) { return n == 3, nil }, true, 3, nil},
		{"at the last", func(n int) (bool, error) { return n == maxTries, nil }, true, maxTries, nil},
		{"never", func(int) (bool, error) { return false, nil }, false, maxTries, nil},
		{"an error", func(int) (bool, error) { return false, broken }, false, 1, broken},
	} {
		looked := 0
		exact, err := until(safepath.RealClock.For(time.Hour), maxTries, func() (bool, error) { looked++; return c.look(looked) })
		expect.True(t, exact == c.exact && looked == c.looked && errors.Is(err, c.err), c.name, exact, "after", looked, "maxTries", err)
	}
}

// stepClock is a clock that goes on by a step each time it is asked.
type stepClock struct {
	time time.Time
	step time.Duration
}

func (c *stepClock) now() time.Time {
	c.time = c.time.Add(c.step)
	return c.time
}

// impossible makes a job that says it has granted, of every device, what no process holds:
// no look at it ever agrees.
func impossible(t *testing.T, name string) string {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	if _, err := r.Claim("member"); err != nil { // a look at a device is a read of its account
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	expect.OK(t, err)
	defer f.Close()
	for d := range abi.Devices {
		word := binary.LittleEndian.AppendUint64(nil, uint64(abi.MakeLedgerWord(uint64(d)+1, 0, 0)))
		if _, err := f.WriteAt(word, observer.Offset("Devices", d, "LedgerWord")); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// A job that never agrees is looked at for as long as one job may be, then each of its
// devices once, and marked.
func TestBudgetWithOneJob(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	path := impossible(t, "scribbles")
	clock := &stepClock{step: 10 * time.Millisecond}
	j, err := readRegion(path, safepath.Clock{Now: clock.now}.For(allBudget))
	expect.Must(t, err == nil && len(j.Devices) == abi.Devices, "got", j, err)
	for _, d := range j.Devices {
		expect.True(t, d.Inexact, "device", d.Device, "is shown as exact")
	}
	// A look asks the clock once, but for the first at each device.
	most := uint64(200*time.Millisecond/clock.step) + abi.Devices
	expect.True(t, j.Reads.Reads <= most, "looked", j.Reads.Reads, "times, and", most, "are enough")
	clock.step = 0
	j, err = readRegion(path, safepath.Clock{Now: clock.now}.For(allBudget))
	expect.True(t, err == nil && j.Reads.Reads == 3*maxTries*abi.Devices, "with timeout: looked", j.Reads.Reads, "times", err)
}

// Many such jobs are looked at for as long as all jobs may be, then each of them once.
func TestBudgetWithManyJobs(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	clock := &stepClock{step: 10 * time.Millisecond}
	p := safepath.Clock{Now: clock.now}.For(allBudget)
	const jobs = 10
	looked := uint64(0)
	for i := range jobs {
		j, err := readRegion(impossible(t, fmt.Sprint("scribbles-", i)), p)
		expect.Must(t, err == nil && j.Devices[0].Inexact, "got", j, err)
		looked += j.Reads.Reads
	}
	most := uint64(500*time.Millisecond/clock.step) + jobs*abi.Devices
	expect.True(t, looked <= most, "looked", looked, "times, and", most, "are enough")
}

// A process of a job that is looked at when other jobs have used up the budget is confirmed
// all the same; one of a job that uses up its own is shown as a claim, and alive.
func TestBudgetWithIdentities(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	path := impossible(t, "late")
	for _, c := range []struct {
		name     string
		step     time.Duration
		verified bool
	}{
		{"a moment for each job", identityBudget / 100, true},
		{"no longer than that", identityBudget, false},
	} {
		clock := &stepClock{step: c.step}
		p := safepath.Clock{Now: clock.now}.For(0)
		j, err := readRegion(path, p)
		expect.Must(t, err == nil && len(j.Processes) == 1, c.name, j, err)
		got := j.Processes[0]
		expect.True(t, got.Verified == c.verified && got.State == Live && got.PID == os.Getpid(), c.name, got)
	}
}
