package gputest

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// TestQueue checks commands that wait for room on the device.
func TestQueue(t *testing.T) {
	for _, c := range []struct {
		name  string
		needs []string
		run   func(*trial)
	}{
		{"in-order", nil, func(t *trial) { t.queueInOrder(short(t, 10, 20), short(t, 64*mib, gib)) }},
		{"idle-sleeps", []string{real}, func(t *trial) { t.queueSleeps(short(t, gib, 2*gib)) }},
	} {
		check(t, c.name, 0, c.needs, func(t *trial) {
			t.checkpoints("1700:4500")
			c.run(t)
		})
	}
}

// waiting returns the names of the jobs in the queue, in its order.
func (t *trial) waiting() (names []string) {
	t.Helper()
	var list struct{ Waiting []machine.Waiting }
	text := t.mustRation("queue", "--json")
	expect.OK(t, json.Unmarshal([]byte(text), &list), text)
	for i := range list.Waiting {
		names = append(names, list.Waiting[i].Job)
	}
	return names
}

// queueInOrder starts jobs at once that each take a seventh of the device. Whenever one ends, the first in the queue
// starts, and no other.
func (t *trial) queueInOrder(jobs int, bytes uint64) {
	limit := (uint64(t.driver.Devices[t.device].Usable()) - gib) / 7
	bytes = min(bytes, limit/2)
	t.flags = []string{"--wait"}
	all := map[string]*sleepingJob{}
	began := time.Now()
	for range jobs {
		t.open(limit)
		all[t.job.Name] = &sleepingJob{program: t.start(nil, t.native("sleeper")...), job: t.job}
	}
	var queue, running []string
	expect.Must(t, eventually(func() bool {
		queue, running = t.waiting(), nil
		for name, p := range all {
			if _, err := os.Stat(p.job.Path); err == nil {
				running = append(running, name)
			}
		}
		return len(running) == 7 && len(queue) == jobs-7
	}), "seven of", jobs, "jobs fit, and there are", &running, "and wait", &queue, t.mustRation("ps"))
	for ended := 0; len(running) > 0; ended++ {
		p := all[running[0]]
		p.hold(bytes, ended)
		p.awake()
		p.quit()
		running = running[1:]
		if len(queue) > 0 {
			rest := queue[1:]
			expect.Must(t, eventually(func() bool { return len(t.waiting()) == len(rest) }), "none of", queue, "has started after the end of another")
			expect.Equal(t, fmt.Sprint(t.waiting()), fmt.Sprint(rest), "which jobs still wait")
			running, queue = append(running, queue[0]), rest
		}
	}
	t.note("%d jobs, seven at a time, in the order of the queue, in %.0f s", jobs, time.Since(began).Seconds())
	t.checkNothingLeft()
}

// queueSleeps fills the device with jobs that may sleep. For a command that waits, the one that was used the longest time
// ago sleeps; when it is used again, it waits in turn, and the next one sleeps for it.
func (t *trial) queueSleeps(bytes uint64) {
	limit := uint64(t.driver.Devices[t.device].Usable()) * 2 / 7 // three at a time, with room to spare
	bytes = min(bytes, limit/2)
	t.flags = []string{"--wait", "--sleep-after", "100s"}
	var all []*sleepingJob
	for range 3 {
		all = append(all, t.startSleepers(1, bytes, limit)...)
		p := all[len(all)-1]
		expect.Must(t, within(time.Minute, func() bool { s := p.state(); return !s.UnusedSince.IsZero() }), "job", p.job.Name, "is not known to do nothing")
	}
	began := time.Now()
	all = append(all, t.startSleepers(1, bytes, limit)...)
	t.note("a command that waits started after %.1f s", time.Since(began).Seconds())
	all[0].asleep()
	all[1].awake()
	all[2].awake()
	began = time.Now()
	all[0].whole()
	t.note("a call of the job that slept for it waited %.1f s", time.Since(began).Seconds())
	all[1].asleep()
	all[2].awake()
	for _, i := range []int{0, 2, 3, 1} {
		all[i].whole()
		all[i].quit()
	}
	t.checkNothingLeft()
}
