package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/region"
	"ration/internal/safepath"
)

// A job whose removal was cut short, after any step, does not count as one that stands; and is removed by the next try.
func TestRemovalCutShort(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	for n := range removal {
		t.Run(fmt.Sprint(n+1), func(t *testing.T) {
			l, err := Create("standing")
			expect.OK(t, err)
			r, err := region.Open(l.Job.Path, region.Options{})
			expect.OK(t, err)
			created := r.Created()
			expect.OK(t, r.Close())
			expect.OK(t, l.Stand(created, "/lib"))
			l.Release()
			_, standing := StandingSince(l.Job)
			expect.Must(t, standing, "it does not stand")
			expect.OK(t, os.WriteFile(filepath.Join(l.Folder, LeavingName), nil, 0o600)) // a policy takes it back
			for _, step := range removal[:n+1] {
				expect.OK(t, step(l.Folder))
			}
			_, standing = StandingSince(l.Job)
			expect.True(t, !standing, "it stands, after a part of it was removed")
			_, err = os.Lstat(filepath.Join(l.Folder, LeavingName))
			expect.True(t, err != nil, "a policy's service would let it stand again")
			expect.Equal(t, Remove(l.Job, true), nil)
			_, err = os.Lstat(l.Folder)
			expect.True(t, err != nil, "it is left")
		})
	}
}

// A region never outlives the file that says what its job is: it would look like another job.
func TestRegionIsRemovedFirst(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
		l, err := Create("one")
		expect.OK(t, err)
		r, err := region.Open(l.Job.Path, region.Options{})
		expect.OK(t, err)
		expect.OK(t, errors.Join(r.Close(), l.WriteInfo(Info{Command: []string{"true"}})))
		l.Release()
		kernel, err := safepath.NewWatcher()
		expect.OK(t, err)
		dir, err := safepath.OpenFolder(l.Folder)
		expect.OK(t, err)
		_, err = kernel.Add(dir, unix.IN_DELETE)
		expect.OK(t, errors.Join(err, unix.Close(dir)))
		if again {
			l, err = Create("one")
			expect.OK(t, err)
			l.Release()
		} else {
			expect.OK(t, Remove(l.Job, true))
		}
		var gone []string
		for len(gone) < 2 {
			events, err := kernel.Read()
			expect.Must(t, err == nil, err)
			for _, e := range events {
				gone = append(gone, e.Name)
			}
		}
		expect.Equal(t, gone[0], RegionName)
		kernel.Close()
	}
}
