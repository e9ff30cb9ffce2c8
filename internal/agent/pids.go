package agent

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
	"ration/machine"
)

// maxPIDs bounds how many processes are watched, and is divided among the users; a quarter of this process's
// file limit is a second bound. For a process beyond them, the next scan notices the end.
const maxPIDs = 8192

// pidWatch reports the ends of processes of jobs.
type pidWatch struct {
	hint  func(folder string)
	epoll int
	stop  int // an eventfd that makes run return
	most  int // most processes to watch

	mu     sync.Mutex
	closed bool
	open   map[int]*ending // by PID
}

// ending is a watched process.
type ending struct {
	fd     int
	folder string // folder of its job
}

func newPIDWatch(hint func(string)) (*pidWatch, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("waiting for processes: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: 0})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("waiting for processes: %w", err)
	}
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return &pidWatch{most: int(min(maxPIDs, files.Cur/4)), hint: hint, epoll: epoll, stop: stop, open: map[int]*ending{}}, nil
}

// set sets the jobs to watch. Only processes whose PID is verified are watched.
func (w *pidWatch) set(jobs []machine.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	accounts := map[int]int{} // by UID
	folders := map[int]map[int]string{}
	for i := range jobs {
		uid := jobs[i].UID
		if _, known := accounts[uid]; !known {
			accounts[uid] = accountOf(uid)
		}
		of := folders[accounts[uid]]
		if of == nil {
			of = map[int]string{}
			folders[accounts[uid]] = of
		}
		for n := range jobs[i].Processes {
			p := &jobs[i].Processes[n]
			pid := cmp.Or(p.HostPID, p.PID) // the host PID is unknown in a container, where other processes see the process by its PID
			// A watched process stays even if its lock is free: it may still be ending.
			if w.open[pid] != nil || p.Verified && p.State != machine.Dead && pid > 0 {
				of[pid] = filepath.Dir(jobs[i].Path)
			}
		}
	}
	wanted := w.divide(folders)
	for pid, folder := range wanted {
		if w.open[pid] == nil {
			w.add(pid, folder)
		}
	}
	for pid, e := range w.open {
		if _, want := wanted[pid]; !want {
			_ = unix.Close(e.fd) // this also removes it from epoll
			delete(w.open, pid)
		}
	}
}

// divide returns the processes that are watched of those that each account has: as many as its part of most,
// first those that are watched already.
func (w *pidWatch) divide(accounts map[int]map[int]string) map[int]string {
	out := map[int]string{}
	order := slices.Sorted(maps.Keys(accounts))
	wants := make([]int, len(order))
	for i, account := range order {
		wants[i] = len(accounts[account])
	}
	for i, most := range safepath.Divide(w.most, wants) {
		for _, watched := range []bool{true, false} {
			for pid, folder := range accounts[order[i]] {
				if most > 0 && (w.open[pid] != nil) == watched {
					out[pid] = folder
					most--
				}
			}
		}
	}
	return out
}

func (w *pidWatch) add(pid int, folder string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended, and the next scan notices that; or the kernel is older than 5.3
	}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(pid)}); err != nil {
		_ = unix.Close(fd)
		return
	}
	w.open[pid] = &ending{fd, folder}
}

// run calls hint with the folder of each job that loses a process. close ends it.
func (w *pidWatch) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if e.Fd == 0 {
				_ = unix.Close(w.epoll)
				_ = unix.Close(w.stop)
				return
			}
			w.mu.Lock()
			ended := w.open[int(e.Fd)]
			w.mu.Unlock()
			if ended != nil {
				w.hint(ended.folder)
			}
		}
	}
}

func (w *pidWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	for _, e := range w.open {
		_ = unix.Close(e.fd)
	}
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}
