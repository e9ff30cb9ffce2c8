package machine

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/termtext"
)

// userPatience is how long all other users' jobs are read together, each user's beside the
// others': a user whose folder does not answer is named, and shown as far as it did.
const userPatience = 2 * time.Second

// lockPatience is how long the kernel's list of locks is read.
const lockPatience = 300 * time.Millisecond

// gathering is the jobs of one reader, which may be given up before it ends.
type gathering struct {
	mu   sync.Mutex
	jobs []Job         // under mu
	cut  bool          // under mu: there are more than are read
	done chan struct{} // closed when the reader has ended
}

func (g *gathering) add(j Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs = append(g.jobs, j)
}

func (g *gathering) setCut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut = true
}

// gather runs a reader in a goroutine of its own.
func gather(read func(g *gathering)) *gathering {
	g := &gathering{done: make(chan struct{})}
	go func() {
		defer close(g.done)
		read(g)
	}()
	return g
}

// wait returns what was read until the deadline, and whether that is all.
func (g *gathering) wait(deadline <-chan struct{}) (jobs []Job, ended, cut bool) {
	select {
	case <-g.done:
		ended = true
	case <-deadline:
		select {
		case <-g.done:
			ended = true
		default:
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.jobs, ended, g.cut
}

// manyNames is the finding that not all names in the folder of temporary files were read.
func manyNames(places job.Places) Finding {
	return Finding{Kind: Unanswering, Device: -1, Text: places.Temp + " holds more names than are read of it; jobs of users without a process may be missing",
		Remedy: "look for the user who makes so many, and remove them"}
}

// within returns a channel that is closed after a while, unless stop is called before.
func within(d time.Duration) (end <-chan struct{}, stop func()) {
	out := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(out) })
	return out, func() { timer.Stop() }
}

// addUsers adds the jobs of all other users: those in the folders where ration puts them, and
// those whose processes have a region locked anywhere. A file is read once, by whatever path.
func (m *Machine) addUsers(places job.Places, most time.Duration) {
	deadline, stop := within(most)
	defer func() { stop() }()
	known := map[job.FileID]bool{}
	for i := range m.Jobs {
		known[m.Jobs[i].file] = true
	}
	take := func(g *gathering, what string) {
		jobs, ended, cut := g.wait(deadline)
		for _, j := range jobs {
			if !known[j.file] {
				known[j.file] = true
				m.Jobs = append(m.Jobs, j)
			}
		}
		if !ended {
			m.addFinding(Finding{Kind: Unanswering, Device: -1,
				Text:   fmt.Sprintf("%s could not be read within %s; what is shown of it may not be all", what, humanfmt.Span(most)),
				Remedy: "look at the file system that it is on, and at how much is in it"})
		} else if cut {
			m.addFinding(Finding{Kind: Unanswering, Device: -1, Text: what + " holds more than is read of it; what is shown is not all",
				Remedy: "have the user remove jobs that have ended (ration rm --stale); ration ps USER/NAME shows one"})
		}
	}
	folders, all := places.Folders()
	if !all {
		m.Findings = append(m.Findings, manyNames(places))
	}
	users, allowances := make([]*gathering, len(folders)), map[int]*allowance{}
	for i, f := range folders {
		user := allowances[proc.Account(f.UID)]
		if user == nil {
			user = newAllowance()
			allowances[proc.Account(f.UID)] = user
		}
		users[i] = gather(func(g *gathering) { readUser(g, f, user) })
	}
	for i, g := range users {
		take(g, fmt.Sprintf("the folder of jobs of user %d", folders[i].UID))
	}
	stop()
	deadline, stop = within(lockPatience)
	locked, all, err := job.LockedFiles(deadline)
	if err != nil {
		return
	}
	if !all {
		m.Findings = append(m.Findings, Finding{Kind: Unanswering, Device: -1,
			Text:   "the kernel's list of locks is too long to be read; jobs outside the folders of jobs may be missing",
			Remedy: "look in /proc/locks for the process that has so many"})
	}
	stop()
	deadline, stop = within(most) // anew: a user who used up the first must not hide these
	var regions []*gathering
	for _, f := range locked {
		if !known[f.ID] {
			user := allowanceOf(allowances, f, newAllowance)
			regions = append(regions, gather(func(g *gathering) { readLocked(g, f, user) }))
		}
	}
	for _, g := range regions {
		take(g, "what processes have locked outside the folders of jobs")
	}
}

// readUser reads the jobs of one user.
func readUser(g *gathering, f job.Folders, user *allowance) {
	p := patienceForAll()
	for _, folder := range f.Paths() {
		all := job.EachIn(folder, func(found job.Job, dir int) bool {
			if user.spent() {
				return false
			}
			j, err := readRegionAt(dir, job.RegionName, found.Path, p, true)
			if j.UID == f.UID { // another's in this user's folder, as a link of it, is not called so
				j.Name = found.Name
			}
			if j.State == Running || !job.EndedOrNotBegun(err) {
				user.cut(&j, kept{})
				g.add(j)
			}
			return true
		})
		if !all {
			g.setCut()
		}
	}
}

// allowanceOf is what may be kept of the jobs of a user of whom a lock was found: by the process
// that has it.
func allowanceOf(all map[int]*allowance, f job.LockedFile, make func() *allowance) *allowance {
	uid := -1
	if owner, _, _, err := proc.Owner(f.PIDs[0]); err == nil {
		uid = proc.Account(owner)
	}
	if all[uid] == nil {
		all[uid] = make()
	}
	return all[uid]
}

// readLocked reads a region of which only a lock was found. What is no region is passed over.
func readLocked(g *gathering, f job.LockedFile, user *allowance) {
	user.turn.Lock()
	defer user.turn.Unlock()
	readLockedInTurn(g, f, user)
}

// readLockedInTurn is readLocked for who has the user's turn.
func readLockedInTurn(g *gathering, f job.LockedFile, user *allowance) {
	if user.spent() {
		g.setCut()
		return
	}
	dir, name, path, err := f.OpenFolder()
	if err != nil {
		if path == "" {
			return
		}
		if _, _, _, ended := proc.Owner(f.PIDs[0]); ended == nil && job.IsRegionPath(path) {
			j, _ := unreadable(termtext.Printable(path), fmt.Errorf("reading a region that pid %s has locked: %w", humanfmt.Claim(strconv.Itoa(f.PIDs[0]), false), err))
			j.State, j.file = Running, f.ID
			g.add(j)
		}
		return
	}
	defer unix.Close(dir)
	j, err := readRegionAt(dir, name, path, patienceForAll(), true)
	if !job.EndedOrNotBegun(err) || j.State == Running {
		user.cut(&j, kept{})
		g.add(j)
	}
}
