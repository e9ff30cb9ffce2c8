package job

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/region"
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
			for _, step := range removal[:n+1] {
				expect.OK(t, step(l.Folder))
			}
			_, standing = StandingSince(l.Job)
			expect.True(t, !standing, "it stands, after a part of it was removed")
			expect.Equal(t, Remove(l.Job, true), nil)
			_, err = os.Lstat(l.Folder)
			expect.True(t, err != nil, "it is left")
		})
	}
}
