package agent

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/inotify"
	"ration/internal/job"
	"ration/internal/safepath"
)

const (
	// maxWatches bounds the folders that are watched; the kernel's own limit may be lower. A folder
	// without a watch is only read by the scan of all jobs.
	maxWatches = 4096
	// A folder with more than maxWatchEvents in floodSpan is not watched for floodRest. So a user
	// that makes files without pause cannot keep the agent busy.
	maxWatchEvents = 256
	floodSpan      = time.Second
	floodRest      = 10 * time.Second
)

// Masks of inotify events. watchNames is for folders in which the agent itself opens files at each
// scan, such as those of ended jobs: there IN_OPEN would report the agent itself.
const (
	watchNames  = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	watchActive = watchNames | unix.IN_OPEN | unix.IN_CLOSE_WRITE
)

// watcher calls hint when a folder should be scanned again.
type watcher struct {
	hint   func(folder string)
	kernel *inotify.Watcher

	mu      sync.Mutex
	closed  bool
	setting bool              // a goroutine is adding watches, because opening a folder may block
	wanted  map[string]uint32 // inotify mask by folder
	watched map[string]int    // inotify watch by folder
	folders map[int]*watch
}

// watch is a watched folder.
type watch struct {
	folder string
	mask   uint32
	events int
	since  time.Time
}

func newWatcher(hint func(string)) (*watcher, error) {
	kernel, err := inotify.New()
	if err != nil {
		return nil, err
	}
	return &watcher{hint: hint, kernel: kernel, wanted: map[string]uint32{}, watched: map[string]int{}, folders: map[int]*watch{}}, nil
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.kernel.Close()
}

// set sets the folders to watch: the base folders, the folders of active jobs, and the folders in
// which the agent opens files at each scan.
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

// drop removes a watch. The caller holds w.mu.
func (w *watcher) drop(folder string, wd int) {
	w.kernel.Remove(wd)
	delete(w.watched, folder)
	delete(w.folders, wd)
}

// missing returns a folder that is wanted, not watched, and not in tried; or "".
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

// add adds the missing watches. It hints at each folder, because inotify does not report files that
// were made before the watch.
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
			if wd, err := w.kernel.Add(dir, mask); err == nil {
				if old := w.folders[wd]; old != nil { // the same folder by another path
					delete(w.watched, old.folder)
				}
				w.watched[folder], w.folders[wd] = wd, &watch{folder: folder, mask: mask, since: time.Now()}
			}
		}
		w.mu.Unlock()
		_ = unix.Close(dir)
		w.hint(folder)
	}
}

// run calls hint for inotify events until close.
func (w *watcher) run() {
	for {
		events, err := w.kernel.Read()
		if err != nil {
			return
		}
		hinted := map[string]bool{}
		for _, e := range events {
			folders := []string{w.folderOf(e)}
			if e.Mask&unix.IN_Q_OVERFLOW != 0 { // the kernel has dropped events, of any folder
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

// all returns the watched folders.
func (w *watcher) all() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for folder := range w.watched {
		out = append(out, folder)
	}
	return out
}

// folderOf returns the folder to scan again after an event, or "".
func (w *watcher) folderOf(e inotify.Event) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.folders[e.Watch]
	if f == nil {
		return ""
	}
	if e.Mask&unix.IN_IGNORED != 0 { // the folder was removed
		delete(w.watched, f.folder)
		delete(w.folders, e.Watch)
		return f.folder
	}
	now := time.Now()
	if now.Sub(f.since) > floodSpan {
		f.since, f.events = now, 0
	}
	if f.events++; f.events > maxWatchEvents {
		w.rest(f, e.Watch)
		return f.folder
	}
	if e.Mask&unix.IN_OPEN != 0 && !job.TellsOfJoin(e.Name) || e.Mask&unix.IN_CLOSE_WRITE != 0 && !job.TellsOfEnd(e.Name) {
		return ""
	}
	if e.Mask&unix.IN_OPEN != 0 { // the process joins after it has opened the file
		for _, after := range joinTimes {
			time.AfterFunc(after, func() { w.hint(f.folder) })
		}
	}
	return f.folder
}

// joinTimes are the usual time and the time on a busy machine that a process needs to join a job
// after it has opened the region. The next scan of all jobs sees slower processes.
var joinTimes = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// rest removes the watch of a folder until floodRest has passed. The caller holds w.mu.
func (w *watcher) rest(f *watch, wd int) {
	w.drop(f.folder, wd)
	delete(w.wanted, f.folder)
	time.AfterFunc(floodRest, func() { w.hint(f.folder) }) // the scan that follows asks for the watch again
}
