package gputest

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
)

// callChecks trace the driver calls that each backend makes, outside any job. Each
// call that could allocate device memory must be mentioned in docs/coverage.md.
func callChecks() (all []Check) {
	for _, b := range backends() {
		if strings.HasPrefix(b.name, "driver") {
			continue // a program of this repository: its calls are in its source
		}
		all = append(all, Check{Group: "calls", Name: b.name, Needs: append([]string{real}, b.needs...), Room: 3 * gib, run: func(t *Trial) error {
			return t.trace(b)
		}})
	}
	return all
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
func (t *Trial) trace(b backend) error {
	prefix := filepath.Join(t.scratch, "trace-"+b.name)
	command, err := b.command(t, strconv.FormatUint(b.piece, 10), strconv.FormatUint(512*mib, 10))
	if err != nil {
		return err
	}
	env := append([]string{"LD_PRELOAD=" + t.Bundle.file("bin", "libtrace.so"), "TRACE_FILE=" + prefix, "XLA_PYTHON_CLIENT_MEM_FRACTION=.02"}, b.env...)
	if _, err := t.start(env, command...); err != nil {
		return err
	}
	if err := t.eachStep(func([]Step) error { return nil }); err != nil {
		return err
	}
	known, err := t.knownCalls()
	if err != nil {
		return err
	}
	calls, err := readTraces(prefix)
	if err != nil {
		return err
	}
	var names, unknown []string
	for name, n := range calls {
		if n == 0 || !mayAllocate(name) {
			continue
		}
		t.values[name] = int64(n)
		names = append(names, name)
		if !known(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(names)
	slices.SortFunc(unknown, cmp.Compare[string])
	t.note("looked up %s names; called, of those that could allocate: %s", humanfmt.Count(len(calls)), strings.Join(names, ", "))
	if len(names) == 0 {
		return fmt.Errorf("no call that could allocate was traced")
	}
	if len(unknown) > 0 {
		return fmt.Errorf("docs/coverage.md does not mention %s", strings.Join(unknown, ", "))
	}
	return nil
}

// knownCalls returns a function that tells whether docs/coverage.md mentions a call.
func (t *Trial) knownCalls() (func(string) bool, error) {
	text, err := os.ReadFile(t.Bundle.file("coverage.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the known calls: %w", err)
	}
	names := map[string]bool{}
	for _, found := range quoted.FindAllStringSubmatch(string(text), -1) {
		names[found[1]] = true
	}
	return func(name string) bool {
		if names[name] {
			return true
		}
		for pattern := range names {
			if prefix, is := strings.CutSuffix(pattern, "*"); is && strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}, nil
}

// readTraces returns the number of calls by name, over all processes that were traced.
func readTraces(prefix string) (map[string]uint64, error) {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no calls were traced")
	}
	calls := map[string]uint64{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("reading a trace: %w", err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text()) // how it was looked up, name, version, flags, calls
			if len(fields) != 5 {
				continue
			}
			n, _ := strconv.ParseUint(fields[4], 10, 64) // libtrace.so writes numbers
			calls[fields[1]] += n
		}
		f.Close()
	}
	return calls, nil
}
