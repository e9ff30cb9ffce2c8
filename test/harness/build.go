// Package harness starts real processes that work a region, gives them orders,
// kills, stops and continues them, and looks at what they do from outside.
// Whatever a test starts has ended when the test has.
package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Tongue is a language a worker is written in, and its two builds.
type Tongue struct {
	Name  string
	Plain string // an ordinary build
	Fault string // one that RATION_FAULT can stop or kill at a point
}

// tongues are those built for this run.
var tongues []Tongue

// Main builds the workers, runs the tests of a package whose folder is the
// parent of the workers', and removes the workers.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ration-workers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// For workers that run as another user inside a namespace.
	if err := errors.Join(os.Chmod(dir, 0o755), build(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes the workers in Go and, where there is one, in C.
func build(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	speak := Tongue{Name: "go", Plain: in("go"), Fault: in("go-fault")}
	tongues = append(tongues, speak)
	err := errors.Join(
		tool("go", "build", "-o", speak.Plain, "./worker"),
		tool("go", "build", "-tags", "faultpoints", "-o", speak.Fault, "./worker"))

	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-iquote../shim"}
	for _, pattern := range []string{"../testprog/cworker/*.c", "../shim/region/*.c"} {
		sources, globErr := filepath.Glob(pattern)
		if err = errors.Join(err, globErr); err != nil || len(sources) == 0 {
			return err
		}
		args = append(args, sources...)
	}
	speak = Tongue{Name: "c", Plain: in("c"), Fault: in("c-fault")}
	tongues = append(tongues, speak)
	return errors.Join(
		tool("cc", append(args, "-o", speak.Plain)...),
		tool("cc", append(args, "-DRATION_FAULTPOINTS", "-o", speak.Fault)...))
}

func tool(name string, arg ...string) error {
	out, err := exec.Command(name, arg...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building a worker: %s %v: %w\n%s", name, arg, err, out)
	}
	return nil
}

// Crew says which tongue each of a test's workers speaks.
type Crew []Tongue

// Of is the tongue of worker i.
func (c Crew) Of(i int) Tongue { return c[i%len(c)] }

// Crews runs a test with a crew of each tongue, and with a mixed one where there
// are several. Of two processes that meet in a mixed crew, the first is Go in one
// run and C in the other.
func Crews(t *testing.T, test func(*testing.T, Crew)) {
	t.Helper()
	for _, speak := range tongues {
		t.Run(speak.Name, func(t *testing.T) { test(t, Crew{speak}) })
	}
	if len(tongues) < 2 {
		return
	}
	first, second := tongues[0], tongues[1]
	t.Run(first.Name+"+"+second.Name, func(t *testing.T) { test(t, Crew{first, second}) })
	t.Run(second.Name+"+"+first.Name, func(t *testing.T) { test(t, Crew{second, first}) })
}

// Native is a crew that needs nothing but Go, for scenes in which the language
// makes no difference.
func Native() Crew { return Crew{tongues[0]} }
