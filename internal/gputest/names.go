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

// Which calls of the driver does each backend make, without us? Each that could
// take memory must be one that docs/coverage.md has something to say about.
func nameChecks() (all []Check) {
	for _, b := range backends() {
		if strings.HasPrefix(b.name, "driver") {
			continue // linked with the driver: it makes the calls that its source has
		}
		all = append(all, Check{Group: "calls", Name: b.name, Needs: append([]string{real}, b.needs...), Room: 3 * gib, run: func(s *Stage) error {
			return s.trace(b)
		}})
	}
	return all
}

// takes says whether a call could take memory, by the verb in its name. Most that get
// something only ask; those that get code load it where it is not loaded yet.
func takes(name string) bool {
	return loading.MatchString(name) || taking.MatchString(name) && !telling.MatchString(name)
}

var (
	loading = regexp.MustCompile(`^cu(LibraryGetModule|KernelGetFunction|ModuleGetFunction)`)
	taking  = regexp.MustCompile(`Alloc|Create|Retain|Import|Load|Map|Reserve|Register|Instantiate|Launch|Bind|AddNode|Multicast`)
	telling = regexp.MustCompile(`Get|Set|Encode|Callback|Notification|^cuEvent|^cuStreamCreate|^cuLaunchHostFunc`)
	quoted  = regexp.MustCompile("`(cu[A-Za-z0-9_*]+)`")
)

// trace runs a backend outside any job, with a library that counts its calls.
func (s *Stage) trace(b backend) error {
	prefix := filepath.Join(s.scratch, "trace-"+b.name)
	command, err := b.command(s, strconv.FormatUint(b.piece, 10), strconv.FormatUint(512*mib, 10))
	if err != nil {
		return err
	}
	env := append([]string{"LD_PRELOAD=" + s.Bundle.file("bin", "libtrace.so"), "TRACE_FILE=" + prefix, "XLA_PYTHON_CLIENT_MEM_FRACTION=.02"}, b.env...)
	if _, err := s.start(env, command...); err != nil {
		return err
	}
	if err := s.lockstep(func([]Step) error { return nil }); err != nil {
		return err
	}
	known, err := s.known()
	if err != nil {
		return err
	}
	calls, err := traced(prefix)
	if err != nil {
		return err
	}
	var names, unknown []string
	for name, n := range calls {
		if n == 0 || !takes(name) {
			continue
		}
		s.values[name] = int64(n)
		names = append(names, name)
		if !known(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(names)
	slices.SortFunc(unknown, cmp.Compare[string])
	s.see("asked for %s names; called, of those that could take memory: %s", humanfmt.Count(len(calls)), strings.Join(names, ", "))
	if len(names) == 0 {
		return fmt.Errorf("nothing that could take memory was seen called")
	}
	if len(unknown) > 0 {
		return fmt.Errorf("nobody has thought about %s", strings.Join(unknown, ", "))
	}
	return nil
}

// known reads which calls ration has something to say about.
func (s *Stage) known() (func(string) bool, error) {
	text, err := os.ReadFile(s.Bundle.file("coverage.md"))
	if err != nil {
		return nil, fmt.Errorf("reading which calls are known: %w", err)
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

// traced sums up what the library wrote down for each process: calls by name.
func traced(prefix string) (map[string]uint64, error) {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no calls were traced")
	}
	calls := map[string]uint64{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("reading what was traced: %w", err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text()) // way, name, version, flags, calls
			if len(fields) != 5 {
				continue
			}
			n, _ := strconv.ParseUint(fields[4], 10, 64) // by our own library
			calls[fields[1]] += n
		}
		f.Close()
	}
	return calls, nil
}
