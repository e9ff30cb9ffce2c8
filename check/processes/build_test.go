package processes

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// impl is an implementation of the region, as two builds of a worker.
type impl struct {
	name  string
	plain string // path of an ordinary build
	fault string // path of a build that RATION_FAULT can stop or kill at a failpoint
}

// The implementations. build fills in the paths.
var inGo, inC = impl{name: "go"}, impl{name: "c"}

// build builds the workers in Go and in C.
func build(dir string) error {
	for _, i := range []*impl{&inGo, &inC} {
		i.plain = filepath.Join(dir, i.name)
		i.fault = i.plain + "-fault"
	}
	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-iquote../../shim"}
	for _, pattern := range []string{"../programs/cworker/*.c", "../../shim/region/*.c"} {
		sources, err := filepath.Glob(pattern)
		if err != nil || len(sources) == 0 {
			return fmt.Errorf("no sources: %s (%w)", pattern, err)
		}
		args = append(args, sources...)
	}
	cc := cmp.Or(os.Getenv("CC"), "cc") // make arm64 sets a cross compiler
	return errors.Join(
		compile("go", "build", "-o", inGo.plain, "../worker"),
		compile("go", "build", "-tags", "faultpoints", "-o", inGo.fault, "../worker"),
		compile(cc, append(args, "-o", inC.plain)...),
		compile(cc, append(args, "-DRATION_FAULTPOINTS", "-o", inC.fault)...))
}

func compile(name string, arg ...string) error {
	out, err := exec.Command(name, arg...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building a worker: %s %v: %w\n%s", name, arg, err, out)
	}
	return nil
}

// impls are the implementations that the workers of a test have, in turn.
type impls []impl

// of returns the implementation of worker i.
func (m impls) of(i int) impl { return m[i%len(m)] }

// goOnly returns a mix of Go alone, for tests in which the implementation makes no
// difference.
func goOnly() impls { return impls{inGo} }

// cOnly returns a mix of C alone, for what only the library does.
func cOnly() impls { return impls{inC} }

// mixes returns each implementation alone, and both mixed: with the first worker in Go, and
// with the first worker in C.
func mixes() []impls { return []impls{{inGo}, {inC}, {inGo, inC}, {inC, inGo}} }

// eachMix runs a test with each mix.
func eachMix(t *testing.T, test func(*testing.T, impls)) {
	t.Helper()
	for _, m := range mixes() {
		name := m[0].name
		if len(m) > 1 {
			name += "+" + m[1].name
		}
		t.Run(name, func(t *testing.T) { test(t, m) })
	}
}

// walkMix runs a test of many kills or rounds with each mix, but in a short run (make test)
// only with the first worker in C, as CUDA programs have it, and the next in Go. make test-slow runs all.
func walkMix(t *testing.T, test func(*testing.T, impls)) {
	t.Helper()
	if !testing.Short() {
		eachMix(t, test)
		return
	}
	t.Run("c+go", func(t *testing.T) { test(t, impls{inC, inGo}) })
}
