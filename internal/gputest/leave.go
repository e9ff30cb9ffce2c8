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

// settling is how long the driver may need to take back what a process had.
const settling = 10 * time.Second

// settled asks until the answer is yes, for as long as the driver may need.
func settled(ask func() (bool, error)) (bool, error) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if yes, err := ask(); yes || err != nil || time.Since(began) > settling {
			return yes, err
		}
	}
}

// nothingLeft waits until the driver has nothing for any process that was ever in the
// books, and then has the books looked at.
func (s *Stage) nothingLeft() error {
	if _, err := s.pids(); err != nil { // who has come and not been seen yet
		return err
	}
	pids, left := s.roll.all(), 0
	if len(pids) == 0 {
		return fmt.Errorf("no process was ever seen in the books")
	}
	gone, err := settled(func() (bool, error) {
		held, err := s.held(pids)
		left = len(held)
		return left == 0, err
	})
	if err != nil {
		return err
	}
	if !gone {
		return fmt.Errorf("the driver still has memory for %d processes that have ended", left)
	}
	status := reap.ReadJob(s.job, reap.Options{})
	if status.Err() != nil {
		return status.Err()
	}
	for _, d := range status.Devices {
		if d.Used != 0 {
			return fmt.Errorf("the books still have %d bytes of device %d, and no process lives", d.Used, d.Device)
		}
	}
	return nil
}

// close ends what still runs, so that the next check starts on an empty device. The
// job's region stays until the end of the run, as it does in life until somebody tidies
// up: what one job has learnt of a device is there for the next.
func (s *Stage) close() {
	pids := s.roll.all()
	if pids == nil {
		pids = map[int]bool{}
	}
	for _, p := range s.all {
		pids[p.PID()] = true // also those in no job
		p.Close()
	}
	// What still holds memory then is the next check's to find out, by the room it needs.
	_, _ = settled(func() (bool, error) {
		ended := endMarked(s.mark)
		held, err := s.held(pids)
		return ended == 0 && len(held) == 0, err
	})
}

// markAs is the variable that tells the processes of a stage from all others. Children
// inherit it however they were started: the ranks of a launcher that was killed have
// another parent, and only this still says whose they are.
const markAs = "RATION_GPU_TEST="

// endMarked kills the processes whose mark begins like this, and says how many there
// were. Their PIDs could be somebody else's by then, so each is held first and looked at
// again.
func endMarked(mark string) (n int) {
	folders, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a good one
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || !marked(pid, mark) || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if marked(pid, mark) && p.Kill() == nil {
			n++
		}
		_ = p.Release()
	}
	return n
}

// marked says whether a process lives and has a mark. The dead have none any more,
// also while nobody has seen them off.
func marked(pid int, mark string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+markAs+mark))
}
