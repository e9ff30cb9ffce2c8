package job

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/budget"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/termtext"
)

// Member is a process of a job, by the kernel's word: it holds a lock of the job's region, or it is a process of the
// job's command, which inherited a lock on `alive`. A signal to its handle reaches no other process.
type Member struct {
	PID    int
	UID    int
	Name   string
	handle *proc.Handle
}

// Signal sends a signal. It is no error if the process has ended.
func (m Member) Signal(s syscall.Signal) error {
	if err := m.handle.Signal(s); err != nil && !errors.Is(err, proc.ErrEnded) {
		return fmt.Errorf("sending %s to pid %d (%s): %w", unix.SignalName(s), m.PID, m.Name, err)
	}
	return nil
}

// CloseMembers closes the handles of processes.
func CloseMembers(all []Member) {
	for _, m := range all {
		_ = m.handle.Close()
	}
}

// Members returns the living processes of a job, as far as this user may look into them, and except for this
// process and launchers: a launcher ends with its command. The caller closes them.
//
// A tenant can hand its lock on `alive` to a process of any user, which must not be ended for that. So the holder of
// such a lock counts only if it runs as the job's owner, or as a user with a process in the region.
func Members(j Job) (out []Member) {
	add := func(pid int, uids map[int]bool, is func() bool) {
		if pid == os.Getpid() || slices.ContainsFunc(out, func(m Member) bool { return m.PID == pid }) {
			return
		}
		h, err := proc.Open(pid)
		if err != nil {
			return
		}
		// Ask while the handle is open: what is read by PID belongs to the process if it is alive afterwards.
		uid, name, _, err := proc.Owner(pid)
		if err != nil || uids != nil && !uids[uid] || !is() || !h.Alive() {
			_ = h.Close()
			return
		}
		out = append(out, Member{pid, uid, termtext.Printable(name), h})
	}
	holds := func(pid int) bool {
		return slices.ContainsFunc(holders(j.Path), func(p region.Process) bool { return p.Seen == pid })
	}
	for _, p := range holders(j.Path) {
		add(p.Seen, nil, func() bool { return holds(p.Seen) })
	}
	uids := map[int]bool{}
	for _, m := range out {
		uids[m.UID] = true
	}
	for _, file := range aliveFiles(j) {
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil {
			continue
		}
		// The owner is that of the region: under a policy `alive` is root's. A record has no region.
		owner := st
		if err := unix.Lstat(j.Path, &owner); err == nil || errors.Is(err, unix.ENOENT) {
			uids[int(owner.Uid)] = true
		}
		id := FileOf(&st)
		for _, pid := range processes() {
			if inherited(pid, id) {
				add(pid, uids, func() bool { return inherited(pid, id) })
			}
		}
	}
	return out
}

// aliveFiles returns the files that the processes of a job's command have locked.
func aliveFiles(j Job) (files []string) {
	files = []string{filepath.Join(filepath.Dir(j.Path), aliveName)}
	if j.Name != "" {
		if record := filepath.Join(Folder(), j.Name, aliveName); record != files[0] {
			files = append(files, record)
		}
	}
	return files
}

// processes returns the PIDs of all processes that this process sees.
func processes() (pids []int) {
	left := budget.Real.For(openersBudget)
	each("/proc", func(name string) bool {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
		return left.Left()
	})
	return pids
}

// inherited reports whether a process has a descriptor from Lock.Inherit: a file that is open for reading only, with
// a shared lock. Launchers and ration wait have it open for writing; a reader has no lock.
func inherited(pid int, id FileID) bool {
	folder := fmt.Sprintf("/proc/%d/", pid)
	return !each(folder+"fd", func(fd string) bool {
		var st unix.Stat_t
		if unix.Stat(folder+"fd/"+fd, &st) != nil || FileOf(&st) != id {
			return true
		}
		info, _ := os.ReadFile(folder + "fdinfo/" + fd)
		return !isInherited(info)
	})
}

// isInherited parses a file of /proc/PID/fdinfo.
func isInherited(info []byte) bool {
	readOnly, locked := false, false
	for line := range bytes.Lines(info) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 2 && string(fields[0]) == "flags:":
			flags, err := strconv.ParseUint(string(fields[1]), 8, 64)
			readOnly = err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
		case len(fields) > 4 && string(fields[0]) == "lock:":
			locked = locked || string(fields[2]) == "OFDLCK" && string(fields[4]) == "READ"
		}
	}
	return readOnly && locked
}

// Stopped is the result of Stop.
type Stopped struct {
	Asked  []Member // processes that got SIGTERM; their handles are closed
	Killed int      // processes that got SIGKILL
	Left   []Member // processes that are still there; their handles are closed
}

// killTimeout is how long Stop waits for the end of processes after SIGKILL: the driver may take seconds to free their
// memory.
const killTimeout = 10 * time.Second

// Stop ends all processes of a job: it sends SIGTERM to each, and after the grace period SIGKILL to those that are
// left. Processes that are started meanwhile get the same.
func Stop(j Job, grace time.Duration) (out Stopped, err error) {
	type identity struct {
		pid   int
		start uint64
	}
	sent := map[identity]syscall.Signal{}
	began := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		members := Members(j)
		passed, signal := time.Since(began), unix.SIGTERM
		if passed >= grace {
			signal = unix.SIGKILL
		}
		var errs []error
		for _, m := range members {
			start, _ := proc.Started(m.PID)
			id := identity{m.PID, start}
			if sent[id] == signal {
				continue
			}
			if sent[id] == 0 {
				out.Asked = append(out.Asked, m)
			}
			if signal == unix.SIGKILL {
				out.Killed++
			}
			sent[id] = signal
			errs = append(errs, m.Signal(signal))
		}
		CloseMembers(members)
		out.Left = members
		if err := errors.Join(errs...); err != nil {
			return out, err
		}
		if len(members) == 0 || passed > grace+killTimeout {
			return out, nil
		}
		time.Sleep(pause)
	}
}
