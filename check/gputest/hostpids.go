package gputest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/reap"
)

func hostPIDChecks() (all []Check) {
	for _, n := range []int{8, 18, 32} {
		room := uint64(n)*700*mib + gib
		all = append(all,
			Check{Group: "pid", Name: fmt.Sprintf("host-x%d", n), Room: room, run: func(t *Trial) error {
				return t.checkHostPIDs(n, nil, false)
			}},
			Check{Group: "pid", Name: fmt.Sprintf("namespace-x%d", n), Needs: []string{unshare, root}, Room: room, run: func(t *Trial) error {
				return t.checkHostPIDs(n, t.namespace(), false)
			}},
			Check{Group: "pid", Name: fmt.Sprintf("namespace-probe-x%d", n), Needs: []string{unshare, root, real}, Room: room, run: func(t *Trial) error {
				return t.checkHostPIDs(n, t.namespace(), true)
			}})
	}
	return all
}

// namespace returns the command that starts another one in a PID namespace of its
// own. The driver needs the /proc of that namespace, as in a container; fakegpu needs
// the host's.
func (t *Trial) namespace() []string {
	command := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if t.NVML == "" {
		command = append(command, "--mount-proc")
	}
	return command
}

// checkHostPIDs starts n programs at once, through a command that may give each a PID
// namespace of its own, and checks that ration knows all their host PIDs. With probe
// each process must find its own, before a process on the host reads the region.
func (t *Trial) checkHostPIDs(n int, through []string, probe bool) error {
	if err := t.open(uint64(n) * 700 * mib); err != nil {
		return err
	}
	env := []string{"RATION_LOG=info"}
	if probe {
		env = append(env, "RATION_HOSTPID=probe")
	}
	if err := t.startAll(n, env, append(through, t.native("workload")...)...); err != nil {
		return err
	}
	from := time.Now()
	if err := t.initTogether(); err != nil {
		return err
	}
	t.values["ready_ms"] = time.Since(from).Milliseconds()
	find, by := t.pidsInRegion, "the region"
	if probe {
		find, by = t.pidsInLogs, "themselves, from the driver's list"
	}
	pids, err := find()
	if err != nil {
		return err
	}
	counts, err := t.driverCounts(pids)
	if err != nil {
		return err
	}
	right := 0
	for pid := range pids {
		if counts[pid] > 0 && t.started(pid) {
			right++
		}
	}
	t.values["found"] = int64(right)
	t.note("%d of %d by %s", right, n, by)
	if right != n {
		return fmt.Errorf("%d host PIDs were found, of which the driver lists %d as programs of this check, not %d", len(pids), right, n)
	}
	if _, err := t.compare("rest"); err != nil {
		return err
	}
	t.noteDifference()
	if err := t.each(func(p *Program) error { _, err := p.ask(0, "quit"); return err }); err != nil {
		return err
	}
	if err := t.each(func(p *Program) error { return p.Wait(stepWithin) }); err != nil {
		return err
	}
	return t.checkNothingLeft()
}

// initTogether has all programs initialise the driver at one instant.
func (t *Trial) initTogether() error {
	at, err := instant(200 * time.Millisecond)
	if err != nil {
		return err
	}
	t.tellAll("init %d", at)
	return t.each(func(p *Program) error { _, err := p.numbers(0); return err })
}

// instant returns a time ahead of now, in nanoseconds of the clock that all processes
// share.
func instant(ahead time.Duration) (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("reading the clock: %w", err)
	}
	return now.Nano() + int64(ahead), nil
}

// pidsInRegion returns the host PIDs in the region, after a process on the host, this
// one, has read it.
func (t *Trial) pidsInRegion() (map[int]bool, error) {
	if status := reap.ReadJob(t.job, reap.Options{}); status.Err() != nil {
		return nil, status.Err()
	}
	return t.readPIDs()
}

var (
	foundPID = regexp.MustCompile(`host PID (\d+), by the driver's list`)
	ownPIDs  = regexp.MustCompile(`host PID not in the driver's list: it has this PID namespace's own`)
)

// pidsInLogs returns the host PIDs that the processes found themselves.
func (t *Trial) pidsInLogs() (map[int]bool, error) {
	pids := map[int]bool{}
	for _, p := range t.programs {
		if ownPIDs.MatchString(p.Log()) {
			return nil, fmt.Errorf("%w: this driver lists the PIDs of the process's own PID namespace, not the host's", ErrUnsuited)
		}
		if found := foundPID.FindStringSubmatch(p.Log()); found != nil {
			pid, err := strconv.Atoi(found[1])
			if err != nil {
				return nil, err
			}
			pids[pid] = true
		}
	}
	return pids, nil
}

// started returns whether a process is a program of the trial, or descends from one.
func (t *Trial) started(pid int) bool {
	for range 32 {
		for _, p := range t.programs {
			if p.PID() == pid {
				return true
			}
		}
		if pid = parentPID(pid); pid <= 1 {
			return false
		}
	}
	return false
}

// parentPID returns the PID of a process's parent, or 0.
func parentPID(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "PPid:"); is {
			n, _ := strconv.Atoi(strings.TrimSpace(value)) // 0 if it is not a number
			return n
		}
	}
	return 0
}
