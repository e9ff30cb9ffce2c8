package agent

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/safepath"
)

const (
	// maxWatches bounds how many folders are watched; the kernel's own bound may be lower. A
	// folder that is not watched is looked at in its turn.
	maxWatches = 4096
	// maxWatchEvents is how many events one folder may have in floodSpan before it is not watched
	// for floodRest: whoever makes files without pause keeps the agent from nothing.
	maxWatchEvents = 256
	floodSpan      = time.Second
	floodRest      = 10 * time.Second
)

// What is waited for. Where nothing of a job is kept open it is not waited for a file to be opened: the
// agent itself does that when it looks, as in the folder of a job that has ended.
const (
	watchNames  = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	watchActive = watchNames | unix.IN_OPEN | unix.IN_CLOSE_WRITE
)

// watcher tells when something happens in folders.
type watcher struct {
	hint func(folder string)
	file *os.File // the inotify descriptor
	fd   int

	mu      sync.Mutex
	closed  bool
	setting bool              // a goroutine adds watches: a folder may not answer
	wanted  map[string]uint32 // mask by folder
	watched map[string]int32  // watch descriptor by folder
	folders map[int32]*watch
}

// watch is a folder that is watched.
type watch struct {
	folder string
	mask   uint32
	events int
	since  time.Time
}

func newWatcher(hint func(string)) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching folders: %w", err)
	}
	return &watcher{hint: hint, fd: fd, file: os.NewFile(uintptr(fd), "inotify"), wanted: map[string]uint32{}, watched: map[string]int32{}, folders: map[int32]*watch{}}, nil
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		_ = w.file.Close()
	}
}

// set sets which folders are watched.
func (w *watcher) set(bases, active, opened []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = make(map[string]uint32, len(bases)+len(active)+len(opened))
	for _, kind := range []struct {
		folders []string
		mask    uint32
	}{{bases, watchNames}, {active, watchActive}, {opened, watchNames}} {
		for _, f := range kind.folders {
			if len(w.wanted) < maxWatches {
				w.wanted[f] |= kind.mask
			}
		}
	}
	for folder, wd := range w.watched {
		if mask, want := w.wanted[folder]; !want || mask != w.folders[wd].mask {
			w.drop(folder, wd)
		}
	}
	if !w.setting && !w.closed {
		w.setting = true
		go w.add()
	}
}

// drop ends a watch. The lock is held.
func (w *watcher) drop(folder string, wd int32) {
	_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
	delete(w.watched, folder)
	delete(w.folders, wd)
}

// missing returns a folder that is wanted and not watched.
func (w *watcher) missing(tried map[string]bool) (folder string, mask uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for folder, mask := range w.wanted {
		if _, set := w.watched[folder]; !set && !tried[folder] && !w.closed {
			return folder, mask
		}
	}
	w.setting = false
	return "", 0
}

// add adds the watches that are missing. What was made before a folder was watched would be
// missed, so each new one is worth a look.
func (w *watcher) add() {
	tried := map[string]bool{}
	for {
		folder, mask := w.missing(tried)
		if folder == "" {
			return
		}
		tried[folder] = true
		dir, err := safepath.OpenFolder(folder)
		if err != nil {
			continue
		}
		w.mu.Lock()
		if !w.closed && w.wanted[folder] == mask {
			if wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", dir), mask); err == nil {
				if old := w.folders[int32(wd)]; old != nil { // the same folder by another path
					delete(w.watched, old.folder)
				}
				w.watched[folder], w.folders[int32(wd)] = int32(wd), &watch{folder: folder, mask: mask, since: time.Now()}
			}
		}
		w.mu.Unlock()
		_ = unix.Close(dir)
		w.hint(folder)
	}
}

// run hands on what happens, until close.
func (w *watcher) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		hinted := map[string]bool{}
		for _, e := range parseInotify(buf[:n]) {
			folders := []string{w.folderOf(e)}
			if e.mask&unix.IN_Q_OVERFLOW != 0 { // some are lost, which may be of any
				folders = w.all()
			}
			for _, folder := range folders {
				if folder != "" && !hinted[folder] {
					hinted[folder] = true
					w.hint(folder)
				}
			}
		}
	}
}

// all returns the folders that are watched.
func (w *watcher) all() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for folder := range w.watched {
		out = append(out, folder)
	}
	return out
}

// inotifyEvent is one event.
type inotifyEvent struct {
	wd   int32
	mask uint32
	name string
}

// parseInotify parses what the kernel wrote.
func parseInotify(text []byte) (out []inotifyEvent) {
	for len(text) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(text[12:]))
		if len(text) < unix.SizeofInotifyEvent+length {
			break
		}
		name := text[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		out = append(out, inotifyEvent{int32(binary.NativeEndian.Uint32(text)), binary.NativeEndian.Uint32(text[4:]), unix.ByteSliceToString(append(name[:len(name):len(name)], 0))})
		text = text[unix.SizeofInotifyEvent+length:]
	}
	return out
}

// folderOf returns the folder in which a look is worth while, or "".
func (w *watcher) folderOf(e inotifyEvent) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.folders[e.wd]
	if f == nil {
		return ""
	}
	if e.mask&unix.IN_IGNORED != 0 { // the folder is gone
		delete(w.watched, f.folder)
		delete(w.folders, e.wd)
		return f.folder
	}
	now := time.Now()
	if now.Sub(f.since) > floodSpan {
		f.since, f.events = now, 0
	}
	if f.events++; f.events > maxWatchEvents {
		w.rest(f, e.wd)
		return f.folder
	}
	if e.mask&unix.IN_OPEN != 0 && !job.TellsOfJoin(e.name) || e.mask&unix.IN_CLOSE_WRITE != 0 && !job.TellsOfEnd(e.name) {
		return ""
	}
	if e.mask&unix.IN_OPEN != 0 { // it joins when it has opened the file
		for _, after := range joinTimes {
			time.AfterFunc(after, func() { w.hint(f.folder) })
		}
	}
	return f.folder
}

// joinTimes is when a process that has opened the region has joined the job: as a rule, and on a
// machine that is busy. If it takes longer, the next look by the clock sees it.
var joinTimes = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// rest leaves a folder alone for a while. The lock is held.
func (w *watcher) rest(f *watch, wd int32) {
	w.drop(f.folder, wd)
	delete(w.wanted, f.folder)
	time.AfterFunc(floodRest, func() { w.hint(f.folder) }) // the look that follows wants it again
}
