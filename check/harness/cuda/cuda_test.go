package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/harness"
	"ration/internal/region"
)

const bound = time.Minute

func machine(t *testing.T) *Machine {
	t.Helper()
	if err := Built(); err != nil {
		t.Skip(err)
	}
	t.Setenv("RATION_LIB", filepath.Join(t.TempDir(), "r", "lib"))
	m := &Machine{GPU: "small:1g", Region: filepath.Join(t.TempDir(), "region"), Limit: 256 << 20, Context: 1 << 20}
	if err := m.Unpack(); err != nil {
		t.Fatal(err)
	}
	return m
}

func start(t *testing.T, m *Machine, inside bool) *Program {
	t.Helper()
	p, err := m.Start(inside)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func do(t *testing.T, p *Program, line string) Answer {
	t.Helper()
	a, err := p.Do(bound, "%s", line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return a
}

func TestProgram(t *testing.T) {
	m := machine(t)
	outside, one, two := start(t, m, false), start(t, m, true), start(t, m, true)
	do(t, outside, "init")
	if err := TellInit([]*Program{one, two}); err != nil {
		t.Fatal(err)
	}
	var roles []region.Role
	for _, p := range []*Program{one, two} {
		a, err := p.Answer(bound)
		role, unknown := p.Role()
		if err := errors.Join(err, unknown); err != nil || a.OutOfMemory {
			t.Fatal(a, err)
		}
		roles = append(roles, role)
	}
	if slices.Sort(roles); roles[1] != region.Initialiser || roles[0] == region.Initialiser {
		t.Errorf("got %v, want one initialiser", roles)
	}
	if a := do(t, one, "alloc 209715200"); a.OutOfMemory {
		t.Error("refused, though there was room")
	}
	if a := do(t, two, "alloc 209715200"); !a.OutOfMemory {
		t.Error("granted, though there was no room")
	}
	if used, err := outside.Used(bound); err != nil || used != 202<<20 {
		t.Errorf("the driver has allocated %d, %v, want 202 MiB", used, err)
	}
	for inside, want := range map[bool]Memory{true: {202, 256}, false: {202, 1024}} {
		if got, err := m.SMI(inside); err != nil || got != want {
			t.Errorf("inside %v: fake-smi shows %v, %v, want %v", inside, got, err, want)
		}
	}
	do(t, two, "quit")
	if err := two.Wait(bound); err != nil {
		t.Error(err)
	}
}

// A program that has ended is reported, not waited for.
func TestProgramEnds(t *testing.T) {
	p := start(t, machine(t), true)
	if _, err := p.Do(bound, "nonsense"); err == nil || errors.Is(err, harness.ErrLate) {
		t.Errorf("got %v, want how it ended", err)
	}
	if _, err := p.Do(bound, "init"); err == nil || errors.Is(err, harness.ErrLate) {
		t.Errorf("got %v, want how it ended", err)
	}
}

// Variables that a user has set for other programs do not reach these.
func TestEnviron(t *testing.T) {
	for _, key := range []string{"CUDA_VISIBLE_DEVICES", "RATION_FAIL", "FAKEGPU_FAIL", "LD_PRELOAD", "LIBCUDA_LOG_LEVEL", "LOG_LEVEL"} {
		t.Setenv(key, "planted")
	}
	t.Setenv("LD_LIBRARY_PATH", "/elsewhere")
	m := &Machine{driver: "/driver", Region: "/job/region"}
	env := m.environ(outside)
	if !slices.Contains(env, "LD_LIBRARY_PATH=/driver:/elsewhere") || !slices.Contains(env, "PATH="+os.Getenv("PATH")) {
		t.Errorf("got %q", env)
	}
	for _, entry := range env {
		if strings.HasSuffix(entry, "=planted") {
			t.Errorf("%s was passed on", entry)
		}
	}
}
