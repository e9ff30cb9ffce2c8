package agent

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/machine"
)

// The history is as long as it says, has gaps where there was nothing, and is a user's own.
func TestHistory(t *testing.T) {
	h := newHistory()
	now := time.Unix(1e9, 0)
	busy := 50
	for i := range historyLength + 20 {
		m := machine.Machine{Devices: []machine.GPU{{Device: 1, Used: uint64(i), Utilization: &busy}}}
		if i%2 == 0 || i > 40 {
			m.Jobs = append(m.Jobs, machine.Job{Path: "mine", UID: 7, State: machine.Running, Died: 3, Devices: []machine.Device{{Device: 2, Used: uint64(i), Peak: 1, Refused: 9}, {Device: 5, Limited: true}}})
		}
		if i < 10 {
			m.Jobs = append(m.Jobs, machine.Job{Path: "theirs", UID: 8, State: machine.Running, Devices: []machine.Device{{Used: 5}}})
		}
		h.add(&m, now)
		h.add(&m, now.Add(historyInterval/2)) // too early
		now = now.Add(historyInterval)
	}
	out := h.read(func(uid int) bool { return uid == 7 })
	expect.Must(t, len(out.Times) == historyLength && len(out.Devices) == 1 && len(out.Jobs) == 1 && len(out.Jobs[0].Used) == historyLength,
		len(out.Times), "times", len(out.Devices), "devices", len(out.Jobs), "jobs")
	j := out.Jobs[0]
	if j.Used[19] != nil || *j.Used[20] != 40 || *j.Used[historyLength-1] != historyLength+19 || *j.Refused[historyLength-1] != 9 || *j.Died[historyLength-1] != 3 || j.Device != 2 {
		t.Errorf("device %d: %v, %v, %v", j.Device, j.Used[19:21], *j.Used[historyLength-1], *j.Died[historyLength-1])
	}
	expect.True(t, *out.Devices[0].Used[0] == 20 && *out.Devices[0].Utilization[5] == 50, out.Devices[0])
	expect.Equal(t, len(h.jobs), 1, "series are kept")
	for i := range 2 * maxHistory { // however many jobs there are
		h.addJob(&machine.Job{Path: fmt.Sprint(i), Devices: []machine.Device{{Used: 1}}}, 1, map[int]bool{})
	}
	expect.True(t, len(h.jobs) <= maxHistory, len(h.jobs), "series are kept")
	// A user with very many leaves room for another, who has as many as there are, up to a half of
	// what the third, whose one stays, leaves.
	of := func(uid int) (n int) {
		for _, s := range h.jobs {
			if s.of.UID == uid {
				n++
			}
		}
		return n
	}
	for i := range maxHistory {
		h.addJob(&machine.Job{Path: fmt.Sprint("late", i), UID: 9, Devices: []machine.Device{{Used: 1}}}, 1, map[int]bool{})
		if want := min(i+1, (maxHistory-1)/2); of(9) != want || of(7) != 1 || len(h.jobs) != maxHistory {
			t.Fatalf("after %d: %d of %d are the other's, want %d", i+1, of(9), len(h.jobs), want)
		}
	}
}

// The history takes no longer than the number of jobs on devices, of which users can have very many.
func TestHistoryOfMany(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const users, jobs = 16, 2048
	var devices []machine.Device
	for d := range abi.Devices {
		devices = append(devices, machine.Device{Device: d, Used: 1})
	}
	var m machine.Machine
	for i := range users * jobs {
		m.Jobs = append(m.Jobs, machine.Job{Path: fmt.Sprint("/", i), UID: 1000 + i%users, State: machine.Running, Devices: devices})
	}
	h, now := newHistory(), time.Now()
	began := threadTime(t)
	h.add(&m, now)
	took := threadTime(t) - began
	expect.True(t, took < 2*time.Second, "took", took, "of the processor") // with a count for each it is more than 5 s
	byUser := map[int]int{}
	for _, s := range h.jobs {
		byUser[s.of.UID]++
	}
	for uid := range users {
		expect.Equal(t, byUser[1000+uid], maxHistory/users, "series of", uid)
	}
}

func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	expect.OK(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
	return time.Duration(now.Nano())
}
