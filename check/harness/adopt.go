package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// descendantsWithin bounds KillDescendants, in case the kernel cannot end a process.
const descendantsWithin = 10 * time.Second

// Adopt makes this program the parent of all descendants whose own parent has ended, such as
// background processes of a shell, so that KillDescendants finds them.
func Adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopting the processes that a shell leaves behind: %w", err)
	}
	started.Lock()
	defer started.Unlock()
	started.adopting = true
	return nil
}

// KillDescendants kills all descendants of this process and waits for their end. It does nothing
// before Adopt. A process keeps its PID until its parent waits for it, so no other process is
// killed by mistake.
func KillDescendants() {
	started.Lock()
	adopting := started.adopting
	started.Unlock()
	if !adopting {
		return
	}
	for end := time.Now().Add(descendantsWithin); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, pid := range childPIDs() {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be a zombie already
		}
		for { // children of processes that end become ours
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
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		var pid, parent int
		var state string
		stat, _ := os.ReadFile(file) // empty if the process has ended
		// PID (NAME) STATE PARENT: the name may contain any character.
		_, _ = fmt.Sscan(string(stat), &pid)
		_, _ = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent)
		if parent == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
