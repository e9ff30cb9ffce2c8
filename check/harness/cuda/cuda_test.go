package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/harness"
	"ration/check/testenv"
	"ration/internal/region"
)

const bound = time.Minute

func machine(t *testing.T) *StandIn {
	t.Helper()
	testenv.Made(t, Built())
	t.Setenv("RATION_LIB", filepath.Join(t.TempDir(), "r", "lib"))
	m := &StandIn{GPU: "small:1g", Region: filepath.Join(t.TempDir(), "region"), Limit: 256 << 20, Context: 1 << 20}
	expect.OK(t, m.Unpack())
	return m
}

func start(t *testing.T, m *StandIn, inside bool) *Program {
	t.Helper()
	p, err := m.Start(inside)
	expect.OK(t, err)
	t.Cleanup(p.Close)
	return p
}

func do(t *testing.T, p *Program, line string) Answer {
	t.Helper()
	a, err := p.Do(bound, "%s", line)
	expect.OK(t, err, line)
	return a
}

func TestProgram(t *testing.T) {
	m := machine(t)
	outside, one, two := start(t, m, false), start(t, m, true), start(t, m, true)
	do(t, outside, "init")
	expect.OK(t, TellInit([]*Program{one, two}))
	var roles []region.Role
	for _, p := range []*Program{one, two} {
		a, err := p.Answer(bound)
		role, unknown := p.Role()
		err = errors.Join(err, unknown)
		expect.Must(t, err == nil && !a.OutOfMemory, a, err)
		roles = append(roles, role)
	}
	slices.Sort(roles)
	expect.True(t, roles[1] == region.Initialiser && roles[0] != region.Initialiser, roles, "want one initialiser")
	expect.True(t, !do(t, one, "alloc 209715200").OutOfMemory, "refused, though there was room")
	expect.True(t, do(t, two, "alloc 209715200").OutOfMemory, "granted, though there was no room")
	if used, err := outside.Used(bound); err != nil || used != 202<<20 {
		t.Errorf("the driver has allocated %d, %v, want 202 MiB", used, err)
	}
	for inside, want := range map[bool]Memory{true: {202, 256}, false: {202, 1024}} {
		got, err := m.SMI(inside)
		expect.True(t, err == nil && got == want, "inside", inside, "fake-smi shows", got, err, want)
	}
	do(t, two, "quit")
	expect.Equal(t, two.Wait(bound), nil)
}

// A program that has ended is reported, not waited for.
func TestProgramEnds(t *testing.T) {
	p := start(t, machine(t), true)
	_, err := p.Do(bound, "nonsense")
	expect.True(t, err != nil && !errors.Is(err, harness.ErrLate), err, "want how it ended")
	_, err = p.Do(bound, "init")
	expect.True(t, err != nil && !errors.Is(err, harness.ErrLate), err, "want how it ended")
}

// Variables that a user has set for other programs do not reach these.
func TestEnviron(t *testing.T) {
	for _, key := range []string{"CUDA_VISIBLE_DEVICES", "RATION_FAIL", "FAKEGPU_FAIL", "LD_PRELOAD", "LIBCUDA_LOG_LEVEL", "LOG_LEVEL"} {
		t.Setenv(key, "planted")
	}
	t.Setenv("LD_LIBRARY_PATH", "/elsewhere")
	m := &StandIn{driver: "/driver", Region: "/job/region"}
	env := m.environ(outside)
	expect.True(t, slices.Contains(env, "LD_LIBRARY_PATH=/driver:/elsewhere") && slices.Contains(env, "PATH="+os.Getenv("PATH")), env)
	for _, entry := range env {
		expect.True(t, !strings.HasSuffix(entry, "=planted"), entry, "was passed on")
	}
}
