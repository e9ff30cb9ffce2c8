package agent

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"ration/internal/job"
	"ration/internal/safepath"
)

const (
	// maxWatches bounds the folders that are watched, and is divided among the users; the kernel's own
	// limit may be lower. A folder without a watch is only read by the scan of all jobs.
	maxWatches = 8192
	// A user whose folders have more than maxWatchEvents at once, and then more than eventRate a second,
	// has no folder watched for floodRest. So a user that opens files without pause, in any number of
	// folders, cannot keep the agent busy.
	maxWatchEvents = 8192
	eventRate      = 512
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
	kernel *safepath.Watcher

	mu       sync.Mutex
	closed   bool
	setting  bool              // a goroutine is adding watches, because opening a folder may block
	users    []job.ScanFolders // as set
	wanted   map[string]wanted
	watched  map[string]int // inotify watch by folder
	folders  map[int]*watch
	accounts map[int]*watchedAccount
	opened   map[string]opening // folders in which a process may be about to join
	sweeping bool               // a timer runs for opened
}

// wanted is how a folder should be watched.
type wanted struct {
	account int
	mask    uint32
}

// watch is a watched folder.
type watch struct {
	folder string
	wanted
}

// watchedAccount is what the folders of a user and its subordinate users have caused.
type watchedAccount struct {
	events  *rate.Limiter
	resting bool // none of its folders is watched
}

// opening says when the region of a folder was last opened, and how many of the hints of joinTimes were given
// since.
type opening struct {
	at    time.Time
	given int
}

func newWatcher(hint func(string)) (*watcher, error) {
	kernel, err := safepath.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &watcher{hint: hint, kernel: kernel, wanted: map[string]wanted{}, watched: map[string]int{}, folders: map[int]*watch{},
		accounts: map[int]*watchedAccount{}, opened: map[string]opening{}}, nil
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.kernel.Close()
}

// set sets which folders of which users are watched.
func (w *watcher) set(users []job.ScanFolders) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users = users
	w.update()
}

// update makes the watches those that the users should have. The caller holds w.mu.
func (w *watcher) update() {
	wants := make([]int, len(w.users))
	there := map[int]bool{}
	for i, u := range w.users {
		there[u.Account] = true
		if a := w.accounts[u.Account]; a == nil || !a.resting {
			wants[i] = len(u.Bases) + len(u.Active) + len(u.Opened)
		}
	}
	w.wanted = map[string]wanted{}
	for i, most := range safepath.Divide(maxWatches, wants) {
		u := w.users[i]
		for _, kind := range []struct {
			folders []string
			mask    uint32
		}{{u.Bases, watchNames}, {u.Active, watchActive}, {u.Opened, watchNames}} {
			n := min(most, len(kind.folders))
			most -= n
			for _, f := range kind.folders[:n] {
				w.wanted[f] = wanted{u.Account, w.wanted[f].mask | kind.mask}
			}
		}
	}
	for folder, wd := range w.watched {
		if w.wanted[folder] != w.folders[wd].wanted {
			w.drop(folder, wd)
		}
	}
	for account, a := range w.accounts {
		if !there[account] && !a.resting {
			delete(w.accounts, account)
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

// missing returns the folders that are wanted, not watched, and not in tried.
func (w *watcher) missing(tried map[string]bool) map[string]wanted {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]wanted{}
	for folder, how := range w.wanted {
		if _, set := w.watched[folder]; !set && !tried[folder] && !w.closed {
			out[folder] = how
		}
	}
	w.setting = len(out) > 0
	return out
}

// add adds the missing watches. It hints at each folder, because inotify does not report files that
// were made before the watch.
func (w *watcher) add() {
	tried := map[string]bool{}
	for missing := w.missing(tried); len(missing) > 0; missing = w.missing(tried) {
		for folder, how := range missing {
			tried[folder] = true
			dir, err := safepath.OpenFolder(folder)
			if err != nil {
				continue
			}
			w.mu.Lock()
			if !w.closed && w.wanted[folder] == how {
				if wd, err := w.kernel.Add(dir, how.mask); err == nil {
					if old := w.folders[wd]; old != nil { // the same folder by another path
						delete(w.watched, old.folder)
					}
					w.watched[folder], w.folders[wd] = wd, &watch{folder, how}
				}
			}
			w.mu.Unlock()
			_ = unix.Close(dir)
			w.hint(folder)
		}
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
func (w *watcher) folderOf(e safepath.WatchEvent) string {
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
	a := w.accounts[f.account]
	if a == nil {
		a = &watchedAccount{events: rate.NewLimiter(eventRate, maxWatchEvents)}
		w.accounts[f.account] = a
	}
	if !a.events.Allow() {
		w.rest(f.account, a)
		return f.folder
	}
	if e.Mask&unix.IN_OPEN != 0 && !job.TellsOfJoin(e.Name) || e.Mask&unix.IN_CLOSE_WRITE != 0 && !job.TellsOfEnd(e.Name) {
		return ""
	}
	if e.Mask&unix.IN_OPEN != 0 { // the process joins after it has opened the file
		w.opened[f.folder] = opening{at: time.Now()}
		w.sweepSoon()
	}
	return f.folder
}

// joinTimes are the usual time and the time on a busy machine that a process needs to join a job
// after it has opened the region. The next scan of all jobs sees slower processes.
var joinTimes = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// sweepSoon starts the timer of opened, one for all folders. The caller holds w.mu.
func (w *watcher) sweepSoon() {
	if !w.sweeping && len(w.opened) > 0 && !w.closed {
		w.sweeping = true
		time.AfterFunc(joinTimes[0], w.sweep)
	}
}

// sweep hints at folders in which a process has joined by now. Each opening hints at its folder at once, and
// thus at processes that opened the region before, so only the last one of a folder is kept.
func (w *watcher) sweep() {
	w.mu.Lock()
	var due []string
	now := time.Now()
	for folder, o := range w.opened {
		if now.Sub(o.at) < joinTimes[o.given] {
			continue
		}
		due = append(due, folder)
		if o.given++; o.given == len(joinTimes) {
			delete(w.opened, folder)
		} else {
			w.opened[folder] = o
		}
	}
	w.sweeping = false
	w.sweepSoon()
	w.mu.Unlock()
	for _, folder := range due {
		w.hint(folder)
	}
}

// rest removes the watches of an account until floodRest has passed. The caller holds w.mu.
func (w *watcher) rest(account int, a *watchedAccount) {
	a.resting = true
	w.update()
	time.AfterFunc(floodRest, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		a.resting = false
		w.update()
	})
}
