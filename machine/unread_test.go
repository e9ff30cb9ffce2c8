package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/region"
)

// A process in a job of a folder that was not read is said to be in that job, to its own user. To root, who reads all jobs,
// a lock is no excuse.
func TestUnreadJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "elsewhere", job.RegionName)
	expect.OK(t, os.Mkdir(filepath.Dir(path), 0o700))
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	_, err = r.Claim("me")
	expect.OK(t, err)
	for name, c := range map[string]struct {
		folder string
		of     Outside
		want   bool
	}{
		"another folder":  {t.TempDir(), Outside{PID: os.Getpid(), Used: gib}, true},
		"another process": {t.TempDir(), Outside{PID: 1, Used: gib}, false},
		"little":          {t.TempDir(), Outside{PID: os.Getpid(), Used: minOutside - 1}, false},
		"all users":       {"", Outside{PID: os.Getpid(), Used: gib}, os.Geteuid() != 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(job.EnvFolder, c.folder)
			m := Machine{Outside: []Outside{c.of}}
			m.nameUnread()
			expect.Equal(t, m.Outside[0].Region == path, c.want, "region", m.Outside[0].Region)
			for _, f := range findingsOf(&m) {
				expect.Equal(t, strings.HasSuffix(f.Text, "is in a job of a folder that is not read here: "+path), c.want, f.Text)
				expect.Equal(t, strings.HasSuffix(f.Text, "belongs to no job") && strings.HasPrefix(f.Remedy, "start it with ration run"), !c.want, f.Text, f.Remedy)
			}
		})
	}

	// A process that joined a job after the job was read is not outside of it.
	t.Setenv(job.EnvFolder, t.TempDir())
	m := Machine{Outside: []Outside{{PID: os.Getpid(), Used: gib}}, Jobs: []Job{{Path: path}}}
	m.nameUnread()
	expect.Equal(t, len(m.Outside), 0, "processes outside", m.Outside)
}
