package gputest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"ration/internal/reap"
)

// releaseWithin is how long the driver may take to release the memory of a process
// that has ended.
const releaseWithin = 10 * time.Second

// eventually calls a function until it returns true, for as long as the driver may
// take to release memory.
func eventually(done func() (bool, error)) (bool, error) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if yes, err := done(); yes || err != nil || time.Since(began) > releaseWithin {
			return yes, err
		}
	}
}

// checkNothingLeft waits until the driver counts nothing for any process that was
// ever in the region, and then checks that the region counts nothing either.
func (t *Trial) checkNothingLeft() error {
	if _, err := t.readPIDs(); err != nil { // the latest processes may not be known yet
		return err
	}
	pids, left := t.known.all(), 0
	if len(pids) == 0 {
		return fmt.Errorf("no process was ever in the region")
	}
	released, err := eventually(func() (bool, error) {
		counts, err := t.driverCounts(pids)
		left = len(counts)
		return left == 0, err
	})
	if err != nil {
		return err
	}
	if !released {
		return fmt.Errorf("the driver still counts memory for %d processes that have ended", left)
	}
	// The driver may list a process no more a moment before it has ended.
	var used uint64
	returned, err := eventually(func() (bool, error) {
		status := reap.ReadJob(t.job, reap.Options{})
		used = 0
		for _, d := range status.Devices {
			used += d.Used
		}
		return used == 0, status.Err()
	})
	if err == nil && !returned {
		err = fmt.Errorf("the region still counts %d bytes, and no process is left", used)
	}
	return err
}

// close ends what still runs, so that the next trial starts on an empty device. The
// job's region stays until the end of the run, as regions do until a user removes
// them: the context cost that one job has measured is there for the next.
func (t *Trial) close() {
	pids := t.known.all()
	if pids == nil {
		pids = map[int]bool{}
	}
	for _, p := range t.programs {
		pids[p.PID()] = true // also those in no job
		p.Close()
	}
	// If memory is still in use after that, the next check may find too little room,
	// and says so.
	_, _ = eventually(func() (bool, error) {
		killed := killMarked(t.mark)
		counts, err := t.driverCounts(pids)
		return killed == 0 && len(counts) == 0, err
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
