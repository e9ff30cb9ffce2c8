package job

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Kept is how many ended jobs Tidy leaves: people ask why after the fact.
const Kept = 16

// Tidy removes the oldest of this user's jobs that were launched and have ended,
// but for the last few. It is nobody's main concern, so it says nothing of what it
// cannot do.
func Tidy() {
	entries, err := os.ReadDir(Folder())
	if err != nil || check(Folder()) != nil {
		return
	}
	type ended struct {
		name string
		at   time.Time
	}
	var all []ended
	for _, e := range entries {
		path, err := Region(e.Name())
		if err != nil {
			continue
		}
		st, err := os.Lstat(filepath.Join(filepath.Dir(path), aliveName))
		if err == nil && !Running(Job{e.Name(), path}) {
			all = append(all, ended{e.Name(), st.ModTime()})
		}
	}
	if len(all) <= Kept {
		return
	}
	slices.SortFunc(all, func(a, b ended) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.name, b.name)) })
	for _, e := range all[Kept:] {
		_ = tidy(e.name)
	}
}

// tidy removes one, unless it has come to life.
func tidy(name string) error {
	h, err := hold(name, exclusive)
	if err != nil {
		return err
	}
	if !h.End() {
		return errors.New("somebody uses it")
	}
	return nil
}
