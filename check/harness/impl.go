// Package harness starts real processes that use a region, gives them orders, kills,
// stops and continues them, and observes the region from outside. All processes of a
// test have ended when the test has.
package harness

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Impl is an implementation of the region, Go or C, as two builds of a worker.
type Impl struct {
	Name  string
	Plain string // path of an ordinary build
	Fault string // path of a build that RATION_FAULT can stop or kill at a failpoint
}

// impls are the implementations that were built for this run.
var impls []Impl

// Main builds the workers, runs the tests of the package in folder test, and removes
// the workers.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ration-workers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// For workers that run as another user in a namespace.
	if err := errors.Join(os.Chmod(dir, 0o755), build(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the workers in Go and in C.
func build(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	impl := Impl{Name: "go", Plain: in("go"), Fault: in("go-fault")}
	impls = append(impls, impl)
	err := errors.Join(
		compile("go", "build", "-o", impl.Plain, "../worker"),
		compile("go", "build", "-tags", "faultpoints", "-o", impl.Fault, "../worker"))

	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-iquote../../shim"}
	for _, pattern := range []string{"../programs/cworker/*.c", "../../shim/region/*.c"} {
		sources, globErr := filepath.Glob(pattern)
		if globErr == nil && len(sources) == 0 {
			globErr = fmt.Errorf("no sources: %s", pattern)
		}
		err = errors.Join(err, globErr)
		args = append(args, sources...)
	}
	cc := cmp.Or(os.Getenv("CC"), "cc") // make arm64 sets a cross compiler
	impl = Impl{Name: "c", Plain: in("c"), Fault: in("c-fault")}
	impls = append(impls, impl)
	return errors.Join(err,
		compile(cc, append(args, "-o", impl.Plain)...),
		compile(cc, append(args, "-DRATION_FAULTPOINTS", "-o", impl.Fault)...))
}

func compile(name string, arg ...string) error {
	out, err := exec.Command(name, arg...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building a worker: %s %v: %w\n%s", name, arg, err, out)
	}
	return nil
}

// Mix is the implementations that the workers of a test have, in turn.
type Mix []Impl

// Of returns the implementation of worker i.
func (m Mix) Of(i int) Impl { return m[i%len(m)] }

// Mixes runs a test with each implementation alone, and with both mixed: with the
// first worker in Go, and with the first worker in C.
func Mixes(t *testing.T, test func(*testing.T, Mix)) {
	t.Helper()
	for _, impl := range impls {
		t.Run(impl.Name, func(t *testing.T) { test(t, Mix{impl}) })
	}
	first, second := impls[0], impls[1]
	t.Run(first.Name+"+"+second.Name, func(t *testing.T) { test(t, Mix{first, second}) })
	t.Run(second.Name+"+"+first.Name, func(t *testing.T) { test(t, Mix{second, first}) })
}

// GoOnly returns a mix of Go alone, for tests in which the implementation makes no
// difference.
func GoOnly() Mix { return Mix{impls[0]} }
