package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// descendantsWithin bounds KillDescendants, for a process that the kernel cannot end: all
// others take as long as it takes to find them.
const descendantsWithin = 10 * time.Second

// Adopt makes this program the parent of all processes below it whose own parent has ended,
// such as those that a shell left in the background, so that KillDescendants finds them.
func Adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of what a shell leaves behind: %w", err)
	}
	children.Lock()
	defer children.Unlock()
	children.adopting = true
	return nil
}

// KillDescendants kills all processes below this one, if it has adopted any, and waits for
// their end. A process has its PID until it was waited for, so no other one is hit.
func KillDescendants() {
	children.Lock()
	adopting := children.adopting
	children.Unlock()
	if !adopting {
		return
	}
	for end := time.Now().Add(descendantsWithin); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, pid := range childPIDs() {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be a zombie already
		}
		for { // what the ended ones had started is ours now
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return
			}
			if pid <= 0 {
				break
			}
		}
	}
}

// childPIDs returns the PIDs of all processes whose parent is this one.
func childPIDs() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	self := strconv.Itoa(os.Getpid())
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name, in brackets, may hold anything: the parent is the second field after it.
		if at := strings.LastIndexByte(string(stat), ')'); at >= 0 {
			if fields := strings.Fields(string(stat[at+1:])); len(fields) > 1 && fields[1] == self {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
