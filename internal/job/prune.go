package job

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Kept is how many ended jobs Prune keeps, so that people can inspect them later.
const Kept = 16

// Prune removes this user's launched jobs that have ended, except for the latest Kept. It does
// nothing if there are fewer than twice as many, because reading them delays the start of a job. It
// returns no error, because a job can be launched without it.
func Prune() {
	entries, err := os.ReadDir(Folder())
	if err != nil || len(entries) <= 2*Kept || checkTrusted(Folder()) != nil {
		return
	}
	type endedJob struct {
		name    string
		created time.Time
	}
	var ended []endedJob
	for _, e := range entries {
		path, err := RegionPath(e.Name())
		if err != nil {
			continue
		}
		st, err := os.Lstat(filepath.Join(filepath.Dir(path), aliveName))
		if err == nil && !Running(Job{e.Name(), path}) && !isStanding(Job{e.Name(), path}) {
			ended = append(ended, endedJob{e.Name(), st.ModTime()})
		}
	}
	slices.SortFunc(ended, func(a, b endedJob) int { return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.name, b.name)) })
	for _, e := range ended[min(Kept, len(ended)):] {
		if l, err := acquire(e.name, exclusive); err == nil {
			l.RemoveIfUnused()
		}
	}
}
