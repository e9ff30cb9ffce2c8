package gputest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"ration/check/expect"
	"ration/internal/node"
)

// releaseWithin is how long the driver may take to release the memory of a process
// that has ended.
const releaseWithin = 10 * time.Second

// eventually calls a function until it returns true, for as long as the driver may
// take to release memory.
func eventually(done func() bool) bool { return within(releaseWithin, done) }

// within calls a function until it returns true, for at most that long.
func within(most time.Duration, done func() bool) bool {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if done() {
			return true
		}
		if time.Since(began) > most {
			return false
		}
	}
}

// checkNothingLeft waits until the driver counts nothing for any process that was
// ever in the region, and then checks that the region counts nothing either.
func (t *trial) checkNothingLeft() {
	t.Helper()
	_, err := t.readPIDs() // the latest processes may not be known yet
	t.must(err)
	pids, left := t.knownPIDs(), 0
	expect.Must(t, len(pids) != 0, "no process was ever in the region")
	if !eventually(func() bool {
		counts, err := t.driverCounts(pids)
		t.must(err)
		left = len(counts)
		return left == 0
	}) {
		t.Fatalf("the driver still counts memory for %d processes that have ended", left)
	}
	// The driver may list a process no more a moment before it has ended.
	var used uint64
	if !eventually(func() bool {
		status := node.ReadJob(t.job, node.Options{})
		t.must(status.Err())
		used = 0
		for _, d := range status.Devices {
			used += d.Used
		}
		return used == 0
	}) {
		t.Fatalf("the region still counts %d bytes, and no process is left", used)
	}
}

// close ends what still runs, so that the next trial starts on an empty device. The
// job's region stays until the end of the run, as regions do until a user removes
// them: the context cost that one job has measured is there for the next.
func (t *trial) close() {
	pids := t.knownPIDs()
	for _, p := range t.programs {
		pids[p.PID()] = true // also those in no job
		p.Close()
		if log := p.Log(); t.Failed() && log != "" {
			t.Logf("pid %d: %s", p.PID(), log)
		}
	}
	// If memory is still in use after that, the next check may find too little room,
	// and says so.
	eventually(func() bool {
		killed := killMarked(t.mark)
		counts, err := t.driverCounts(pids)
		return err != nil || killed == 0 && len(counts) == 0
	})
}

// markVariable is the environment variable that marks all processes of a trial. All
// descendants inherit it: a rank whose launcher was killed has another parent, and
// only the mark still tells which trial it belongs to.
const markVariable = "RATION_GPU_TEST="

// killMarked kills all processes whose mark has a prefix, and returns how many there
// were. A PID could belong to another process by the time of the kill, so it takes a
// handle of the process first and checks the mark again.
func killMarked(prefix string) (n int) {
	folders, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || !marked(pid, prefix) || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if marked(pid, prefix) && p.Kill() == nil {
			n++
		}
		_ = p.Release()
	}
	return n
}

// marked returns whether a process is alive and has a mark with this prefix. A
// zombie has none.
func marked(pid int, prefix string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+markVariable+prefix))
}
