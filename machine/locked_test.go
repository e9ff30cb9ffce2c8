package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
)

// A region that is found by its lock has the name that the list of its folder gives it: it may have been made after that
// was read. A link to another user's, and a region elsewhere, have none.
func TestNameOfLocked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(job.EnvFolder, filepath.Join(dir, "own"))
	was := job.SystemPaths
	t.Cleanup(func() { job.SystemPaths = was })
	job.SystemPaths = job.Paths{Runtime: dir, Temp: dir, Home: func(int) string { return "" }}
	uid := strconv.Itoa(os.Getuid())
	for path, want := range map[string]string{
		filepath.Join(dir, "own", "train", "region"):             "train",
		filepath.Join(dir, uid, "ration", "fold", "region"):      "fold",
		filepath.Join(dir, uid, "ration", "fold", "other"):       "",
		filepath.Join(dir, uid, "ration", "user-4001", "region"): "",
		filepath.Join(dir, "61001", "ration", "fold", "region"):  "",
		filepath.Join(dir, "elsewhere", "fold", "region"):        "",
	} {
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		holder := startHolders(t, path)
		var st unix.Stat_t
		expect.OK(t, unix.Lstat(path, &st))
		for _, once := range []bool{true, false} {
			u := newUserScan(0, "a region", &quota{left: func() bool { return true }})
			u.once, u.locked = once, &job.LockedFile{ID: job.FileOf(&st), PIDs: []int{holder.Process.Pid}}
			var got userResult
			if once {
				got = u.readOnce()
			} else {
				got = u.scan(time.Now(), nil, bounds{1, 1}, true)
			}
			expect.Must(t, len(got.jobs) == 1, path, got.jobs)
			expect.Equal(t, got.jobs[0].Name, want, path, "once", once)
			u.end()
		}
	}
}

// Root decides the name of a policy's job, also if a user owns its region.
func TestNameOfLockedOfPolicy(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir()) // not root's, where all names are root's word
	for _, uid := range []int{0, 61001} {
		name, own := job.SystemPaths.NameAt(uid, job.OfUserPath(61001))
		expect.True(t, name == job.OfUser(61001) && own, uid, name, own)
	}
	j := Job{Path: job.OfUserPath(61001)}
	j.setName(job.OfUser(61001))
	expect.Equal(t, j.Name, "61001", "its user has no name")
}
