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

	"ration/internal/job"
	"ration/internal/launch"
)

// takes are the calls by which a program can come by device memory; a new one in a
// new driver will be called something like them. The others that are left alone
// take none.
var takes = regexp.MustCompile(`^cu(Mem(Alloc|Create|Pool(Create|Alloc)|.*Alloc)|(Mipmapped)?Array3?D?Create|(Module|Library)Load|GraphAddMemAlloc|(Green)?Ctx.*Create|DevicePrimaryCtxRetain)`)

// harmless are calls that look like it.
var harmless = regexp.MustCompile(`^cu(MemHostAlloc|MemAllocHost|MemPoolGet|MemPoolSet|.*(Export|Import|GetAccess|SetAccess|GetAttribute|Properties|Free))`)

// resolved is a line of the library's log: a name, and what becomes of its calls.
var resolved = regexp.MustCompile(`\bresolves (\w+)[^:]*: (counted|passed on)`)

// program runs a command with the library and without a limit, and looks at what
// it does.
func (v *visit) program() {
	const name = "program"
	if v.library == "" || !v.folder {
		v.skip(name, "there is no library, or no place for a job")
		return
	}
	log, region := filepath.Join(v.scratch, "log"), filepath.Join(v.scratch, "program")
	cmd := exec.Command(v.Command[0], v.Command[1:]...)
	cmd.Env = append(v.environ(), "LD_PRELOAD="+v.library, launch.EnvRegion+"="+region, "RATION_LOG=debug", "RATION_LOG_FILE="+log)
	// What the doctor says is on standard output, and may be JSON.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		v.fail(name, "is it in PATH, and a program?", "%s does not start: %v", v.Command[0], err)
		return
	}
	status := cmd.ProcessState.ExitCode()
	v.report.Status = &status
	v.joined(job.Read(job.Job{Path: region}, job.ReadOptions{}), cmd.ProcessState.String())
	if f, err := os.Open(log); err == nil {
		defer f.Close()
		v.calls(f)
	}
}

// joined says whether it came by the library at all.
func (v *visit) joined(s job.Status, ended string) {
	switch {
	case s.Err() == nil && s.Claims > 0:
		peaks := ""
		for _, d := range s.Devices {
			peaks += fmt.Sprintf(", at most %d MiB on device %d", d.Peak>>20, d.Device)
		}
		v.pass("program", "%s: %d of its processes used CUDA and were counted%s", ended, s.Claims, peaks)
	case s.Err() == nil || errors.Is(s.Err(), os.ErrNotExist):
		v.warn("program", "does it use CUDA at all? A static program, or one that clears its environment, loses the library; for the latter there is ration run --keep",
			"%s: none of its processes used CUDA through the library", ended)
	default:
		v.fail("program", "see what it says", "%v", s.Err())
	}
}

// calls reads from the library's log which calls the program knows.
func (v *visit) calls(log io.Reader) {
	const name = "calls"
	counted, alone, missed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		m := resolved.FindStringSubmatch(lines.Text())
		switch {
		case m == nil:
		case m[2] == "counted":
			counted[m[1]] = true
		case takes.MatchString(m[1]) && !harmless.MatchString(m[1]):
			missed[m[1]] = true
		default:
			alone[m[1]] = true
		}
	}
	switch {
	case len(counted)+len(alone)+len(missed) == 0:
		v.skip(name, "the library does not say which calls the program looked for")
	case len(missed) > 0:
		var names []string
		for n := range missed {
			names = append(names, n)
		}
		slices.Sort(names)
		v.warn(name, "what they take shows as driver overhead, later than it should; report it", "it may use %s, which are not counted", strings.Join(names, ", "))
	default:
		v.pass(name, "it looked for %d calls that are counted, and %d that take nothing", len(counted), len(alone))
	}
}
