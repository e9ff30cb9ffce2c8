package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/machine"
)

// checkPreloads checks which other libraries are preloaded.
func (c *checker) checkPreloads() {
	found := 0
	text, err := os.ReadFile(launch.PreloadFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.warn("preloads", "make it readable", "%v", err)
	}
	for where, list := range map[string]string{launch.PreloadFile: string(text), launch.PreloadVariable: os.Getenv(launch.PreloadVariable)} {
		for _, path := range launch.SplitPreloads(list) {
			found++
			switch filepath.Base(path) {
			case "libvgpu.so":
				c.fail("preloads", "remove it there: docs/from-hami-core.md", "%s names HAMi-core's %s: with both, everything is counted and refused twice", where, path)
			case "libration.so":
				if where == launch.PreloadFile {
					c.pass("preloads", "%s names %s: every program of this machine has it", where, path)
				}
			default:
				if _, err := os.Stat(path); err != nil && strings.Contains(path, "/") {
					c.warn("preloads", "remove it there", "%s names %s, which does not exist: each program prints a warning", where, path)
				}
			}
		}
	}
	if found == 0 {
		c.pass("preloads", "nothing else is preloaded")
	}
}

// checkJobs checks all jobs.
func (c *checker) checkJobs() {
	all, err := job.List()
	if err != nil {
		c.fail("jobs", "name another folder in "+job.EnvFolder, "%v", err)
		return
	}
	healthy, ended := 0, 0
	left := checkUntil(time.Now, jobsBudget, all, func(j job.Job) {
		switch c.checkJob(j) {
		case jobHealthy:
			healthy++
		case jobEnded:
			ended++
		}
	})
	if left > 0 {
		c.warn("jobs", "ration ps shows them; end those that take long", "%s not checked: the others took %v", humanfmt.Plural(left, "was", "were"), jobsBudget)
	}
	text := fmt.Sprintf("%d in good order", healthy)
	if ended > 0 {
		text += "; " + humanfmt.Plural(ended, "has ended, and is", "have ended, and are") + " kept for ration why (--fix removes them)"
	}
	c.pass("jobs", "%s", text)
}

// jobsBudget bounds the time for checking all jobs; the remaining ones are skipped. A hostile job
// can take half a second.
const jobsBudget = 5 * time.Second

// checkUntil checks jobs, and returns how many were skipped because the time was used up.
func checkUntil(now func() time.Time, most time.Duration, jobs []job.Job, check func(job.Job)) (left int) {
	end := now().Add(most)
	for i, j := range jobs {
		if i > 0 && !now().Before(end) {
			return len(jobs) - i
		}
		check(j)
	}
	return 0
}

// Results of checkJob.
const (
	jobHealthy  = iota
	jobEnded    // and its region is kept
	jobReported // it has a check of its own in the report
)

// checkJob checks one job, and reports its problems.
func (c *checker) checkJob(j job.Job) int {
	name := "job " + j.Title()
	s := node.ReadJob(j, node.Options{ReadOnly: !c.Fix})
	switch {
	case errors.Is(s.Err(), fs.ErrNotExist):
		return jobHealthy // it has ended since
	case s.Err() != nil:
		c.fail(name, fmt.Sprintf("end its processes, then ration rm --force %s", j.Title()), "%v", s.Err())
		return jobReported
	case j.Name != "" && job.Ended(j, time.Now()):
		if c.Fix {
			if err := job.Remove(j, false); err != nil {
				c.warn(name, "ration rm "+j.Title(), "has ended, and cannot be removed: %v", err)
				return jobReported
			}
			c.add(Check{Name: name, Verdict: Pass, Text: "had ended, and was removed", Fixed: true})
			return jobReported
		}
		return jobEnded
	}
	if n := len(s.Reaped); n > 0 {
		c.add(Check{Name: name, Verdict: Pass, Text: "returned what " + humanfmt.Plural(n, "dead process", "dead processes") + " held", Fixed: true})
		return jobReported
	}
	dead := 0
	for _, p := range s.Processes {
		if p.State == machine.Dead {
			dead++
		}
	}
	if dead > 0 {
		c.warn(name, machine.DeadRemedy, "memory of %s is still charged", humanfmt.Plural(dead, "dead process", "dead processes"))
		return jobReported
	}
	return jobHealthy
}
