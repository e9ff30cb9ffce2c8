package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
)

// A GPU that has failed is a warning, and not "All checks passed".
func TestCheckDevices(t *testing.T) {
	c := &checker{}
	c.checkDevices([]gpu.Device{{Index: 0}, {Index: 1, Failed: errors.New("reading device 1: lost (try nvidia-smi)")}})
	got := c.report.Checks
	expect.True(t, len(got) == 1 && got[0].Verdict == Warn && got[0].Text == "GPU 1 does not answer: reading device 1: lost" && got[0].Remedy != "", got)
}

// The doctor tries the folder of jobs without making a job, and leaves nothing in it.
func TestCheckJobFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(job.EnvFolder, folder)
	t.Setenv(job.EnvRegion, "")
	scratch, err := job.MakeScratch()
	expect.OK(t, err)
	jobs, err := job.List()
	expect.True(t, err == nil && len(jobs) == 0, "a job:", jobs, err)
	expect.OK(t, os.Remove(scratch))
	c := &checker{}
	c.checkJobFolder()
	left, err := os.ReadDir(folder)
	expect.True(t, err == nil && len(left) == 0 && c.hasJobs && len(c.report.Checks) == 2, left, err, c.report)
}
