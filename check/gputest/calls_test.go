package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/humanfmt"
)

// TestCalls traces the driver calls that each backend makes, outside any job. Each
// call that could allocate device memory must be mentioned in docs/coverage.md.
func TestCalls(t *testing.T) {
	for _, b := range backends {
		if b.program != calls { // whose calls are in its source
			check(t, b.name, 3*gib, append([]string{real}, b.needs...), func(t *trial) { t.trace(b) })
		}
	}
}

// mayAllocate returns whether a call could allocate device memory, by the verb in its
// name. Most calls named Get only read; those that get code may load it.
func mayAllocate(name string) bool {
	return loads.MatchString(name) || allocates.MatchString(name) && !reads.MatchString(name)
}

var (
	loads     = regexp.MustCompile(`^cu(LibraryGetModule|KernelGetFunction|ModuleGetFunction)`)
	allocates = regexp.MustCompile(`Alloc|Create|Retain|Import|Load|Map|Reserve|Register|Instantiate|Launch|Bind|AddNode|Multicast`)
	reads     = regexp.MustCompile(`Get|Set|Encode|Callback|Notification|^cuEvent|^cuStreamCreate|^cuLaunchHostFunc`)
	quoted    = regexp.MustCompile("`(cu[A-Za-z0-9_*]+)`")
)

// trace runs a backend outside any job, with a library that counts its calls.
func (t *trial) trace(b backend) {
	prefix := filepath.Join(t.scratch, "trace-"+b.name)
	env := append([]string{"LD_PRELOAD=" + t.file("bin", "libtrace.so"), "TRACE_FILE=" + prefix, "XLA_PYTHON_CLIENT_MEM_FRACTION=.02"}, b.env...)
	t.start(env, b.command(t, 512*mib)...)
	t.eachStep(func([]step) {})
	coverage, err := os.ReadFile(t.file("coverage.md"))
	t.must(err)
	counts, err := readTraces(prefix)
	t.must(err)
	known := knownCalls(string(coverage))
	var names, unknown []string
	for name, n := range counts {
		if n > 0 && mayAllocate(name) {
			names = append(names, name)
			if !known(name) {
				unknown = append(unknown, name)
			}
		}
	}
	slices.Sort(names)
	slices.Sort(unknown)
	t.note("looked up %s names; called, of those that could allocate: %s", humanfmt.Count(len(counts)), strings.Join(names, ", "))
	expect.Must(t, len(names) != 0, "no call that could allocate was traced")
	expect.Must(t, len(unknown) <= 0, "docs/coverage.md does not mention", strings.Join(unknown, ", "))
}

// knownCalls returns a function that tells whether docs/coverage.md, of this text,
// mentions a call.
func knownCalls(coverage string) func(string) bool {
	names := map[string]bool{}
	for _, found := range quoted.FindAllStringSubmatch(coverage, -1) {
		names[found[1]] = true
	}
	return func(name string) bool {
		for known := range names {
			if prefix, is := strings.CutSuffix(known, "*"); name == known || is && strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
}

// readTraces returns the number of calls by name, over all processes that were traced.
func readTraces(prefix string) (map[string]uint64, error) {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no calls were traced")
	}
	counts := map[string]uint64{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading a trace: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) == 5 { // how it was looked up, name, version, flags, calls
				n, _ := strconv.ParseUint(fields[4], 10, 64) // libtrace.so writes numbers
				counts[fields[1]] += n
			}
		}
	}
	return counts, nil
}
