package job

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
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

// Signal sends a signal to processes of a job. If it tells them to end, their ends are no deaths.
func Signal(j Job, to []Member, s syscall.Signal) error {
	if Ends(s) && len(to) > 0 {
		Tell(cmp.Or(runPathOf(j), j.Path), s, func(p region.Process) bool {
			return slices.ContainsFunc(to, func(m Member) bool { return m.PID == p.Seen })
		})
	}
	var errs []error
	for _, m := range to {
		errs = append(errs, m.signal(s))
	}
	return errors.Join(errs...)
}

// Ends reports whether a signal tells a process to end.
func Ends(s syscall.Signal) bool {
	switch s {
	case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGKILL:
		return true
	}
	return false
}

// Tell marks the processes of a region that get a signal that ends: their ends are no deaths. After SIGTERM and SIGKILL that
// is so whenever they end. The others can also mean something else, as SIGINT in a notebook, so they count for a minute.
// Root does so only in a file that no other user than its own can replace.
func Tell(path string, s syscall.Signal, which func(region.Process) bool) {
	dir, writer, err := safepath.OpenFolderOf(filepath.Dir(path))
	if err != nil {
		return
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if safepath.StatAt(dir, filepath.Base(path), &st) != nil || os.Geteuid() == 0 && writer != 0 && int(st.Uid) != writer {
		return
	}
	forGood := s == unix.SIGTERM || s == unix.SIGKILL
	_ = region.Tell(dir, filepath.Base(path), path, forGood, which) // without a mark, what ends counts as having died
}

// signal sends a signal. SIGCONT follows one that tells the process to end: a process that is stopped could not handle it.
// It is no error if the process has ended.
func (m Member) signal(s syscall.Signal) error {
	err := m.handle.Signal(s)
	if err == nil && Ends(s) {
		_ = m.handle.Signal(unix.SIGCONT) // it may have ended, or have another user by now
	}
	if err != nil && !errors.Is(err, proc.ErrEnded) {
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
// process and launchers: a launcher ends with its command. A launcher that waits for room has no command yet, and
// counts. The caller closes them.
//
// A signal goes to what Members returns, perhaps root's. So a tenant must not be able to add a process of another
// user: by handing it the lock on `alive`, nor by a link or another user's file in the job's folder or in its place.
// The holder of a lock on `alive` counts only if it runs as the job's owner, or as a user with a process in the
// region. In a folder that one user can change, only processes of that user count. A record has the processes of its run.
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
		if err != nil || uids != nil && !uids[proc.Account(uid)] || !is() || !h.Alive() {
			_ = h.Close()
			return
		}
		out = append(out, Member{pid, uid, termtext.Printable(name), h})
	}
	files, writer := aliveFiles(j)
	var only map[int]bool // users whose processes in the region count; nil for all
	if writer > 0 {
		only = map[int]bool{proc.Account(writer): true}
	}
	counted := cmp.Or(runPathOf(j), j.Path)
	holds := func(pid int) bool {
		return slices.ContainsFunc(holders(counted), func(p region.Process) bool { return p.Seen == pid })
	}
	for _, p := range holders(counted) {
		add(p.Seen, only, func() bool { return holds(p.Seen) })
	}
	folder := filepath.Dir(j.Path)
	if q := FindQueued(filepath.Dir(folder), filepath.Base(folder)); q != nil { // its command waits for room
		add(q.PID, nil, func() bool { return q.isLauncher(q.PID) })
		q.Close()
	}
	if uid, is := UserOf(filepath.Base(folder)); is && filepath.Dir(folder) == RootFolder { // programs that wait for the user's ration
		waiting := func() []Client {
			w, _ := WaitingForRation(uid)
			return w.Clients
		}
		for _, c := range waiting() {
			add(c.PID, map[int]bool{proc.Account(uid): true}, func() bool { return slices.Contains(waiting(), c) })
		}
	}
	uids := map[int]bool{}
	for _, m := range out {
		uids[proc.Account(m.UID)] = true
	}
	for _, file := range files {
		uids[proc.Account(file.owner)] = true
	}
	if len(files) == 0 {
		return out
	}
	left := safepath.RealClock.For(openersBudget) // only the job's own users can use it up
	for _, pid := range processes() {
		add(pid, uids, func() bool {
			return slices.ContainsFunc(files, func(file aliveFile) bool { return inherited(pid, file.id, left) })
		})
	}
	return out
}

// aliveFile is a file that the processes of a job's command have locked.
type aliveFile struct {
	id    FileID
	owner int // of the job
}

// aliveFiles returns these files of a job. writer is as in safepath.OpenFolderOf, for the job's folder.
func aliveFiles(j Job) (files []aliveFile, writer int) {
	folder := filepath.Dir(j.Path)
	file, writer, err := findAlive(folder, filepath.Base(j.Path))
	if err == nil {
		files = append(files, file)
	}
	if record := filepath.Join(Folder(), j.Name); j.Name != "" && record != folder {
		if file, _, err := findAlive(record, filepath.Base(j.Path)); err == nil {
			files = append(files, file)
		}
	}
	return files, writer
}

// findAlive returns the file in a folder, unless another user than the job's owner may have put it there.
func findAlive(folder, region string) (file aliveFile, writer int, err error) {
	dir, writer, err := safepath.OpenFolderOf(folder)
	if err != nil {
		return file, safepath.Several, err
	}
	defer unix.Close(dir)
	var alive, owner unix.Stat_t
	if err := safepath.StatAt(dir, aliveName, &alive); err != nil {
		return file, writer, err
	}
	// The owner is that of the region: under a policy `alive` is root's. A record has no region.
	err = safepath.StatAt(dir, region, &owner)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Fstat(dir, &owner)
	}
	switch {
	case err != nil:
		return file, writer, err
	case writer > 0 && int(owner.Uid) != writer:
		return file, writer, ErrFolder
	}
	return aliveFile{FileOf(&alive), int(owner.Uid)}, writer, nil
}

// processes returns the PIDs of all processes that this process sees.
func processes() (pids []int) {
	left := safepath.RealClock.For(openersBudget)
	each("/proc", func(name string) bool {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
		return left.Left()
	})
	return pids
}

// inherited reports whether a process has a descriptor from Lock.Inherit: a file that is open for reading only, with
// a shared lock. Launchers and ration wait have it open for writing, the launcher of a run keeps it for itself, with another
// number than the programs that inherit it; a reader has no lock. It asks no file system of the process, which may
// never answer.
func inherited(pid int, id FileID, left safepath.Budget) bool {
	folder := fmt.Sprintf("/proc/%d/", pid)
	found := false
	each(folder+"fd", func(fd string) bool {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, folder+"fd/"+fd, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) == nil &&
			(FileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) == id {
			n, err := strconv.Atoi(fd)
			found = err == nil && isInherited(n, readFDInfo(folder+"fdinfo/"+fd))
		}
		return !found && left.Left()
	})
	return found
}

// maxFDInfo is how much of a descriptor's fdinfo is read: a file can have any number of locks.
const maxFDInfo = 64 << 10

func readFDInfo(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _, _ := readUntil(f, maxFDInfo, nil)
	return text
}

// isInherited parses the file of a descriptor in /proc/PID/fdinfo. A program may have marked all of its descriptors as those
// that the programs it executes do not get.
func isInherited(fd int, info []byte) bool {
	readOnly, locked := false, false
	for line := range bytes.Lines(info) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 2 && string(fields[0]) == "flags:":
			flags, err := strconv.ParseUint(string(fields[1]), 8, 64)
			readOnly = err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY && (flags&unix.O_CLOEXEC == 0 || fd >= minInheritedFD)
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

// Stop ends all processes of a job: it sends SIGTERM to each, with SIGCONT, and after the grace period SIGKILL to those that are
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
		var to []Member
		for _, m := range members {
			start, err := proc.Started(m.PID)
			id := identity{m.PID, start}
			if err != nil || sent[id] == signal { // it has ended just now, or is about to
				continue
			}
			if sent[id] == 0 {
				out.Asked = append(out.Asked, m)
			}
			if signal == unix.SIGKILL {
				out.Killed++
			}
			sent[id] = signal
			to = append(to, m)
		}
		err := Signal(j, to, signal)
		CloseMembers(members)
		out.Left = members
		if err != nil {
			return out, err
		}
		if len(members) == 0 || passed > grace+killTimeout {
			return out, nil
		}
		time.Sleep(pause)
	}
}
