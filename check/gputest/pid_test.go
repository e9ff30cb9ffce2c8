package gputest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/node"
	"ration/internal/proc"
)

// TestPID checks that ration knows the host PIDs of programs that start at one instant: on
// the host, each in a PID namespace of its own, and there by the driver's list alone.
func TestPID(t *testing.T) {
	for _, n := range []int{8, 18, 32} {
		room := uint64(n)*700*mib + gib
		check(t, fmt.Sprintf("host-x%d", n), room, nil, func(t *trial) { t.checkHostPIDs(n, nil, false) })
		check(t, fmt.Sprintf("namespace-x%d", n), room, []string{unshare, root}, func(t *trial) { t.checkHostPIDs(n, t.namespace(), false) })
		check(t, fmt.Sprintf("namespace-probe-x%d", n), room, []string{unshare, root, real}, func(t *trial) { t.checkHostPIDs(n, t.namespace(), true) })
	}
}

// namespace returns the command that starts another one in a PID namespace of its
// own. The driver needs the /proc of that namespace, as in a container; fakegpu needs
// the host's.
func (t *trial) namespace() []string {
	command := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if !t.onStandIn() {
		command = append(command, "--mount-proc")
	}
	return command
}

// checkHostPIDs starts n programs at once, through a command that may give each a PID
// namespace of its own, and checks that ration knows all their host PIDs. With probe
// each process must find its own, before a process on the host reads the region.
func (t *trial) checkHostPIDs(n int, through []string, probe bool) {
	t.open(uint64(n) * 700 * mib)
	env := []string{"RATION_LOG=info"}
	if probe {
		env = append(env, "RATION_HOSTPID=probe")
	}
	t.startAll(n, env, append(through, t.native("workload")...)...)
	t.tellAll("init %d", t.instant(200*time.Millisecond))
	for _, p := range t.programs {
		p.numbers(0)
	}
	var pids map[int]bool
	by := "the region"
	if probe {
		pids, by = t.pidsInLogs(), "themselves, from the driver's list"
	} else {
		status := node.ReadJob(t.job, node.Options{}) // a process on the host, this one, finds them
		t.must(status.Err())
		var err error
		pids, err = t.readPIDs()
		t.must(err)
	}
	counts, err := t.driverCounts(pids)
	t.must(err)
	right := 0
	for pid := range pids {
		if counts[pid] > 0 && t.started(pid) {
			right++
		}
	}
	t.note("%d of %d by %s", right, n, by)
	expect.Must(t, right == n, len(pids), "host PIDs were found, of which the driver lists", right, "as programs of this check, not", n)
	t.compare("rest")
	t.noteDifference()
	for _, p := range t.programs {
		p.ask(0, "quit")
	}
	for _, p := range t.programs {
		t.must(p.Wait(stepWithin))
	}
	t.checkNothingLeft()
}

// instant returns a time ahead of now, in nanoseconds of the clock that all processes
// share.
func (t *trial) instant(ahead time.Duration) int64 {
	var now unix.Timespec
	t.must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano() + int64(ahead)
}

var (
	foundPID = regexp.MustCompile(`host PID (\d+), by the driver's list`)
	ownPIDs  = regexp.MustCompile(`host PID not in the driver's list: it has this PID namespace's own`)
)

// pidsInLogs returns the host PIDs that the processes found themselves.
func (t *trial) pidsInLogs() map[int]bool {
	pids := map[int]bool{}
	for _, p := range t.programs {
		if ownPIDs.MatchString(p.Log()) {
			t.Skipf("this driver lists the PIDs of the process's own PID namespace, not the host's")
		}
		if found := foundPID.FindStringSubmatch(p.Log()); found != nil {
			pid, err := strconv.Atoi(found[1])
			t.must(err)
			pids[pid] = true
		}
	}
	return pids
}

// started returns whether a process is a program of the trial, or descends from one.
func (t *trial) started(pid int) bool {
	is := func(pid int) bool {
		return slices.ContainsFunc(t.programs, func(p *program) bool { return p.PID() == pid })
	}
	return is(pid) || proc.Ancestor(pid, is) != 0
}
