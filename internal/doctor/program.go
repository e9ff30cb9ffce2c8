package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/node"
	"ration/machine"
)

// allocating matches the calls that allocate device memory, and the likely names of
// such calls in a newer driver.
var allocating = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^cu(Mem(Alloc|Create|Pool(Create|Alloc)|.*Alloc)|(Mipmapped)?Array3?D?Create|(Module|Library)Load|GraphAddMemAlloc|(Green)?Ctx.*Create|DevicePrimaryCtxRetain)`)
})

// notAllocating matches exceptions: names that allocating matches, of calls that do not allocate.
var notAllocating = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^cu(MemHostAlloc|MemAllocHost|MemPoolGet|MemPoolSet|.*(Export|Import|GetAccess|SetAccess|GetAttribute|Properties|Free))`)
})

// resolved matches a line of the library's log: a call that was looked up, and whether
// it is counted.
var resolved = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\bresolves (\w+)[^:]*: (counted|passed on)`)
})

// checkProgram runs the command with the library and without a limit, and checks
// whether it was counted.
func (c *checker) checkProgram() {
	const name = "program"
	if c.library == "" || !c.hasJobs {
		c.skip(name, "there is no library, or no job can be made")
		return
	}
	if job.Ruled() {
		c.skip(name, "it was not run: the policy puts all your programs into one job, which counts them (run it, and ration ps shows what it holds)")
		return
	}
	log, region := filepath.Join(c.scratch, "log"), filepath.Join(c.scratch, "program")
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Env = append(c.environ(), launch.PreloadVariable+"="+c.library, launch.EnvRegion+"="+region, "RATION_LOG=debug", "RATION_LOG_FILE="+log)
	// Standard output is for the doctor's report, which may be JSON.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.fail(name, "is it in PATH, and a program?", "%s does not start: %v", c.Command[0], err)
		return
	}
	status := cmd.ProcessState.ExitCode()
	c.report.Status = &status
	c.checkCounted(node.ReadJob(job.Job{Path: region}, node.Options{}), cmd.ProcessState.String())
	if f, err := os.Open(log); err == nil {
		defer f.Close()
		c.checkCalls(f)
	}
}

// checkCounted checks whether any process of the command used the library. ended says how the
// command ended.
func (c *checker) checkCounted(s machine.Job, ended string) {
	switch {
	case s.Err() == nil && s.Claims > 0:
		peaks := ""
		for _, d := range s.Devices {
			peaks += fmt.Sprintf(", at most %d MiB on device %d", d.Peak>>20, d.Device)
		}
		c.pass("program", "%s: %d of its processes used CUDA and were counted%s", ended, s.Claims, peaks)
	case s.Err() == nil || errors.Is(s.Err(), os.ErrNotExist):
		c.warn("program", "does it use CUDA at all? A static program, or one that clears its environment, loses the library; for the latter there is ration run --keep",
			"%s: none of its processes used CUDA through the library", ended)
	default:
		c.fail("program", "see the message", "%v", s.Err())
	}
}

// checkCalls reads in the library's log which calls the program has looked up, and checks them.
func (c *checker) checkCalls(log io.Reader) {
	const name = "calls"
	counted, ignored, missed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		m := resolved().FindStringSubmatch(lines.Text())
		switch {
		case m == nil:
		case m[2] == "counted":
			counted[m[1]] = true
		case allocating().MatchString(m[1]) && !notAllocating().MatchString(m[1]):
			missed[m[1]] = true
		default:
			ignored[m[1]] = true
		}
	}
	switch {
	case len(counted)+len(ignored)+len(missed) == 0:
		c.skip(name, "the library's log does not say which calls the program looked up")
	case len(missed) > 0:
		var names []string
		for n := range missed {
			names = append(names, n)
		}
		slices.Sort(names)
		c.warn(name, "what they allocate is counted later, as driver overhead; report it", "it may use %s, which are not counted", strings.Join(names, ", "))
	default:
		c.pass(name, "it looked up %d calls that are counted, and %d that allocate nothing", len(counted), len(ignored))
	}
}
