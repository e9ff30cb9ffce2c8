package policy

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/safepath"
)

// uncoverEvery is how often uncoverAll looks.
const uncoverEvery = time.Second

// uncoverAll unmounts file systems that users have mounted over their regions, until the context ends.
func (k *keeper) uncoverAll(ctx context.Context) {
	tick := time.NewTicker(uncoverEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !safepath.AnyMounts() {
			continue
		}
		runs := map[int][]job.Job{}
		for _, run := range job.RunsOf(-1) {
			uid, _, _ := job.RunOf(run.Name)
			runs[uid] = append(runs[uid], run)
		}
		for _, uid := range Users() {
			was, err := uncover(append(runs[uid], jobOf(uid)))
			switch {
			case (was || err != nil) && !k.mayLog(uid):
			case err != nil:
				k.log.Error("the region of a user's job is covered", "user", proc.UserName(uid), "uid", uid, "error", err)
			case was:
				k.log.Warn("a user had mounted a file system over the region of a job: it was unmounted", "user", proc.UserName(uid), "uid", uid)
			}
		}
	}
}

// uncover unmounts what a user has mounted over the regions of the user's job and runs. It would hide from root what they
// hold, and keep them for ever. It reports whether there was something.
func uncover(jobs []job.Job) (was bool, err error) {
	for _, j := range jobs {
		users, failed := safepath.Uncover(j.Path)
		was = was || len(users) > 0
		if !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return was, err
}
