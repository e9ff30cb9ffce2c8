package machine

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
	"ration/internal/safepath"
)

// envFlood names a region of which this program is to take all slots, by locks that it really
// holds, until its input ends.
const envFlood = "RATION_TEST_FLOOD"

func flood(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for slot := range abi.Slots {
		status := binary.LittleEndian.AppendUint64(nil, uint64(abi.MakeStatus(1, abi.SlotActive)))
		if _, err := f.WriteAt(status, observer.Offset("Status", slot)); err != nil {
			return err
		}
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: observer.Offset("Slots", slot), Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l); err != nil {
			return err
		}
	}
	high := binary.LittleEndian.AppendUint64(nil, abi.Slots)
	if _, err := f.WriteAt(high, observer.Offset("Header", "HighWater")); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// A process that has all slots of its job is shown as that, and costs a look no more than a
// process of its own in each would: what it has locked is asked for once, not for each slot.
func TestFlood(t *testing.T) {
	path := makeRegionAt(t, filepath.Join(t.TempDir(), "region"))
	t.Setenv(envFlood, path)
	holdAs(t, os.Args[0], os.Geteuid(), "")
	t.Setenv(envFlood, "")
	// On a clock that stands still: as long as the kernel is asked, a slow machine may not get
	// round to all of them. Asked for each slot, it would be asked more often than it ever is.
	j, err := readRegion(path, safepath.Clock{Now: (&stepClock{}).now}.For(allBudget))
	expect.Must(t, err == nil && len(j.Processes) == abi.Slots, len(j.Processes), "processes", err)
	for _, p := range j.Processes {
		expect.Must(t, p.Verified, p)
	}
}

// BenchmarkReadFloodedJob is a look at such a job.
func BenchmarkReadFloodedJob(b *testing.B) {
	path := filepath.Join(b.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(b, err)
	_ = r.Close()
	b.Setenv(envFlood, path)
	startHolders(b)
	b.Setenv(envFlood, "")
	for b.Loop() {
		if j, err := ReadJob(path); err != nil || len(j.Processes) != abi.Slots {
			b.Fatalf("%d processes, %v", len(j.Processes), err)
		}
	}
}

// Jobs of high and of low priority that claim to use different devices, and records of jobs that are not there, take no
// longer than their number: with a look at each pair of them a single user would stop root's agent for seconds.
func TestManyClaimsTakeLittleTime(t *testing.T) {
	runtime.LockOSThread() // for threadTime
	defer runtime.UnlockOSThread()
	const jobs = 2048
	var m Machine
	var records []Job
	for i := range jobs {
		j := Job{Path: fmt.Sprintf("/run/user/1000/ration/%d/region", i), Priority: []string{"high", "low"}[i%2], State: Running}
		for d := range abi.Devices {
			j.Devices = append(j.Devices, Device{Device: d, Used: 1, UUID: fmt.Sprintf("GPU-%08d-1111-2222-3333-%012d", i, d)})
		}
		m.Jobs = append(m.Jobs, j)
		records = append(records, Job{countedIn: fmt.Sprintf("/run/ration/run-1000-%d/region", i)})
	}
	began := threadTime()
	m.addPriorities(false)
	m.addRecords(records)
	took := threadTime() - began
	expect.True(t, took < time.Second, "took", took, "of the processor") // by pairs it is 9 s
	for i := range m.Jobs {
		expect.Must(t, strings.HasPrefix(m.Jobs[i].NoPriority, "no job of "), m.Jobs[i].NoPriority)
	}
}
