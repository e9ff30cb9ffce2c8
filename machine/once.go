package machine

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// readOnce reads all jobs of the user, and keeps no file open.
func (u *userScan) readOnce() userResult {
	p := budgetForAll()
	var records []Job
	add := func(name string, j Job, err error) {
		if u.locked == nil && (u.uid == ownUser || j.UID == u.uid) { // another user's job must not get the name of a link to it
			j.setName(name)
		}
		if name == "" || j.State == Running || !job.EndedOrNotBegun(err) {
			j.reap(u.reap)
			u.quota.cut(&j, used{})
			u.mu.Lock()
			u.partial = append(u.partial, j)
			u.mu.Unlock()
		} else if j.countedIn != "" {
			records = append(records, j)
		}
	}
	out := userResult{changed: true}
	if u.locked == nil {
		u.state.readQueues(u.paths()) // before the jobs: a command makes its job before it leaves the queue
		out.waiting = u.state.waiting
	}
	switch {
	case u.locked != nil:
		if u.quota.isSpent() {
			out.cut = true
		} else if j, shown := u.readLocked(); shown {
			add("", j, nil)
		}
	case u.uid == ownUser:
		jobs, _ := job.List() // scan has returned the error
		for _, found := range jobs {
			j, err := readRegion(found.Path, p)
			_, ofPolicy := job.PolicyUser(found.Path) // its region is removed or mounted by the service, which has it locked
			if !job.EndedOrNotBegun(err) || !ofPolicy && (found.Name == "" || region.Locked(found.Path)) {
				add(found.Name, j, nil)
			}
			if _, run, is := job.RunOf(filepath.Base(filepath.Dir(found.Path))); is {
				record, _ := readRegion(filepath.Join(job.Folder(), run, job.RegionName), p)
				records = append(records, record)
			}
		}
		out.cut = u.readFolders(job.OtherFolders(), p, add)
	default:
		out.cut = u.readFolders(u.paths(), p, add)
	}
	out.jobs, out.records = slices.Clone(u.partial), records // a scan that does not wait for this one reads u.partial
	if u.uid != ownUser {
		// The folders of others are read in the order of their file systems. Of two records of a run, dropRecords keeps the first.
		slices.SortStableFunc(out.jobs, func(a, b Job) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), b.Created.Compare(a.Created), cmp.Compare(a.Path, b.Path))
		})
	}
	return out
}

// readFolders calls add for each job in folders. It reports whether there are more than were read.
func (u *userScan) readFolders(folders []string, p safepath.Budget, add func(name string, j Job, err error)) (cut bool) {
	for _, folder := range folders {
		all := job.EachIn(folder, func(found job.Job, dir int) bool {
			if u.quota.isSpent() || u.isOver() {
				return false
			}
			j, err := readRegionAt(dir, job.RegionName, found.Path, p, true)
			add(found.Name, j, err)
			return true
		})
		cut = cut || !all
	}
	return cut
}

// readLocked reads a region that was found by its lock. shown is false if the file is not a region.
func (u *userScan) readLocked() (j Job, shown bool) {
	f := *u.locked
	dir, name, path, err := f.OpenFolder()
	if err != nil {
		if path == "" {
			return j, false
		}
		if _, _, _, ended := proc.Owner(f.PIDs[0]); ended != nil || !job.IsRegionPath(path) {
			return j, false
		}
		if errors.Is(err, safepath.ErrMount) && filepath.Dir(filepath.Dir(path)) == job.RootFolder {
			return j, false // it is in the list of that folder, with its limits
		}
		j, _ = unreadable(termtext.Printable(path), fmt.Errorf("reading a region that pid %d has locked: %w", f.PIDs[0], err))
		j.State, j.file = Running, f.ID
		return j, true
	}
	defer unix.Close(dir)
	j, err = readRegionAt(dir, name, path, budgetForAll(), true)
	folder, _ := u.placeOf(dir, name, path)
	j.setName(folder)
	return j, !job.EndedOrNotBegun(err) || j.State == Running
}

// placeOf returns what the scan of the folder of jobs that a path is in knows of the job there: the name of its folder, and
// whose folder it is. So a region that was found by its lock, because it was made after that scan, has the same name.
// dir is the folder of the region, whose file name there is region.
func (u *userScan) placeOf(dir int, region, path string) (name string, owner int) {
	var st unix.Stat_t
	if err := safepath.StatAt(dir, region, &st); err != nil {
		return "", u.uid
	}
	switch name, own := job.SystemPaths.NameAt(int(st.Uid), path); {
	case own:
		return name, ownUser
	case name != "":
		return name, int(st.Uid)
	}
	return "", u.uid
}
