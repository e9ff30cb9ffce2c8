package job

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ration/internal/region"
)

// A job whose removal was cut short, after any step, does not count as one that stands; and is removed by the next try.
func TestRemovalCutShort(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	for n := range removal {
		t.Run(fmt.Sprint(n+1), func(t *testing.T) {
			l, err := Create("standing")
			must(t, err)
			r, err := region.Open(l.Job.Path, region.Options{})
			must(t, err)
			created := r.Created()
			must(t, r.Close())
			must(t, l.Stand(created, "/lib"))
			l.Release()
			if _, standing := StandingSince(l.Job); !standing {
				t.Fatal("it does not stand")
			}
			for _, step := range removal[:n+1] {
				must(t, step(l.Folder))
			}
			if _, standing := StandingSince(l.Job); standing {
				t.Error("it stands, after a part of it was removed")
			}
			if err := Remove(l.Job, true); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(l.Folder); err == nil {
				t.Error("it is left")
			}
		})
	}
}
