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

func pidChecks() (all []Check) {
	for _, n := range []int{8, 18, 32} {
		room := uint64(n)*700*mib + gib
		all = append(all,
			Check{Group: "pid", Name: fmt.Sprintf("host-x%d", n), Room: room, run: func(s *Stage) error {
				return s.names(n, nil, false)
			}},
			Check{Group: "pid", Name: fmt.Sprintf("namespace-x%d", n), Needs: []string{unshare, root}, Room: room, run: func(s *Stage) error {
				return s.names(n, s.namespace(), false)
			}},
			Check{Group: "pid", Name: fmt.Sprintf("namespace-probe-x%d", n), Needs: []string{unshare, root, real}, Room: room, run: func(s *Stage) error {
				return s.names(n, s.namespace(), true)
			}})
	}
	return all
}

// namespace is how a command gets a PID namespace of its own. The driver wants a /proc
// that goes with it, as containers have it; the stand-in wants the host's.
func (s *Stage) namespace() []string {
	command := []string{"unshare", "--pid", "--fork", "--kill-child"}
	if s.NVML == "" {
		command = append(command, "--mount-proc")
	}
	return command
}

// names starts n programs at once, each in a PID namespace of its own where it is
// started through a command that makes one, and sees whether the books know them all
// by the names the driver has for them. With probe the processes must find out by
// themselves, before anybody looks.
func (s *Stage) names(n int, through []string, probe bool) error {
	if err := s.open(uint64(n) * 700 * mib); err != nil {
		return err
	}
	env := []string{"RATION_LOG=info"}
	if probe {
		env = append(env, "RATION_HOSTPID=probe")
	}
	if err := s.startAll(n, env, append(through, s.native("workload")...)...); err != nil {
		return err
	}
	from := time.Now()
	if err := s.initTogether(); err != nil {
		return err
	}
	s.values["ready_ms"] = time.Since(from).Milliseconds()
	known, by := s.namesInBooks, "the books"
	if probe {
		known, by = s.namesInLogs, "themselves, by the driver's list"
	}
	pids, err := known()
	if err != nil {
		return err
	}
	held, err := s.held(pids)
	if err != nil {
		return err
	}
	right := 0
	for pid := range pids {
		if held[pid] > 0 && s.descends(pid) {
			right++
		}
	}
	s.values["found"] = int64(right)
	s.see("%d of %d by %s", right, n, by)
	if right != n {
		return fmt.Errorf("the books name %d processes, of which the driver knows %d as ours, not %d", len(pids), right, n)
	}
	if _, err := s.agree("rest"); err != nil {
		return err
	}
	s.seeOff()
	if err := s.each(func(p *Program) error { _, err := p.ask(0, "quit"); return err }); err != nil {
		return err
	}
	if err := s.each(func(p *Program) error { return p.Ended(patience) }); err != nil {
		return err
	}
	return s.nothingLeft()
}

// initTogether has all programs start to use the device at one instant.
func (s *Stage) initTogether() error {
	at, err := instant(200 * time.Millisecond)
	if err != nil {
		return err
	}
	if err := s.each(func(p *Program) error { return p.tell(fmt.Sprintf("init %d", at)) }); err != nil {
		return err
	}
	return s.each(func(p *Program) error { _, err := p.figures(); return err })
}

// instant is one in the future, on the clock that all processes share.
func instant(ahead time.Duration) (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("reading the clock: %w", err)
	}
	return now.Nano() + int64(ahead), nil
}

// namesInBooks are the host's PIDs by the region, after somebody on the host, this
// process, has looked.
func (s *Stage) namesInBooks() (map[int]bool, error) {
	if status := reap.ReadJob(s.job, reap.Options{}); status.Err() != nil {
		return nil, status.Err()
	}
	return s.pids()
}

var (
	foundPID = regexp.MustCompile(`host PID (\d+), by the driver's list`)
	ownPIDs  = regexp.MustCompile(`host PID not in the driver's list: it has this PID namespace's own`)
)

// namesInLogs are the host's PIDs that the processes found themselves.
func (s *Stage) namesInLogs() (map[int]bool, error) {
	pids := map[int]bool{}
	for _, p := range s.all {
		if ownPIDs.MatchString(p.tail.String()) {
			return nil, fmt.Errorf("%w: this driver shows a PID namespace its own PIDs, so there is no host's to be found in its list", ErrUnsuited)
		}
		if found := foundPID.FindStringSubmatch(p.tail.String()); found != nil {
			pid, err := strconv.Atoi(found[1])
			if err != nil {
				return nil, err
			}
			pids[pid] = true
		}
	}
	return pids, nil
}

// descends says whether a process was started by one of the stage's.
func (s *Stage) descends(pid int) bool {
	for range 32 {
		for _, p := range s.all {
			if p.PID() == pid {
				return true
			}
		}
		if pid = parent(pid); pid <= 1 {
			return false
		}
	}
	return false
}

// parent is a process's, or 0.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "PPid:"); is {
			n, _ := strconv.Atoi(strings.TrimSpace(value)) // 0 ends the search
			return n
		}
	}
	return 0
}
