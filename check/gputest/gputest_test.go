package gputest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/testenv"
	"ration/internal/embedded"
)

// fakeMachine returns a machine whose driver is fakegpu. The tests check the checks:
// that they pass on a correct ration, and fail on a wrong one.
func fakeMachine(t *testing.T, env ...string) *Machine {
	t.Helper()
	bundle, err := filepath.Abs("../../build/gpu-test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bundle, "ration")); err != nil {
		t.Skip("build/gpu-test is not there (run make gpu-bundle)")
	}
	t.Setenv("RATION_LIB", filepath.Join(t.TempDir(), "r", "lib"))
	driver, err := embedded.FakeGPU.Unpack()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("RATION_DIR", "") // Open chooses
	env = append([]string{"FAKEGPU=h200", "FAKEGPU_STRICT=1", "FAKEGPU_STATE=" + filepath.Join(t.TempDir(), "gpu"), "LD_LIBRARY_PATH=" + driver}, env...)
	for _, entry := range env {
		key, value, _ := strings.Cut(entry, "=")
		t.Setenv(key, value)
	}
	m := &Machine{Bundle: Bundle(bundle), NVML: filepath.Join(driver, "libnvidia-ml.so.1"), Env: env, Device: AnyDevice}
	if err := m.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

type quiet struct{ t *testing.T }

func (q quiet) Begin(string) {}
func (q quiet) Checked(o Outcome) {
	q.t.Logf("%s %s: %s %s", o.Verdict, o.Check, o.Summary, o.Logs)
}
func (q quiet) Measured(r Row) { q.t.Logf("%s %v %s", r.Name, r.Ratio, r.Why) }

func run(t *testing.T, m *Machine, only string, p Plan) Report {
	t.Helper()
	p.Only, p.Quick = regexp.MustCompile(only), true
	r, err := Run(m, p, quiet{t})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChecks(t *testing.T) {
	testenv.NeedsHost(t)
	for name, c := range map[string]struct {
		env     []string
		visible string // CUDA_VISIBLE_DEVICES of the tester
		only    string
		least   int
	}{
		"all":               {visible: "", only: "^(limit/driver|allocpath/|pid/|kill/|agent/)", least: 16},
		"blocks as real":    {env: []string{"FAKEGPU_BLOCK=2m"}, only: "^(limit/driver-x1$|allocpath/)", least: 13},
		"the second device": {env: []string{"FAKEGPU=h200x2"}, visible: "1", only: "^(limit/driver-x1|allocpath/(linear|ipc)|pid/host-x8)$", least: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CUDA_VISIBLE_DEVICES", c.visible)
			r := run(t, fakeMachine(t, c.env...), c.only, Plan{Checks: true})
			for _, o := range r.Checks {
				if o.Verdict == Fail {
					t.Errorf("%s: %s", o.Check, o.Summary)
				}
			}
			if n := r.count(Pass); n < c.least {
				t.Errorf("only %d checks could be made", n)
			}
			if want := strings.Count(c.visible, "1"); r.Machine.Device != want {
				t.Errorf("device %d was tested, not %d", r.Machine.Device, want)
			}
		})
	}
}

// A ration that grants half as much again, and one that counts nothing, fail.
func TestChecksCanFail(t *testing.T) {
	for name, script := range map[string]string{
		"generous": `#!/bin/sh
bundle=BUNDLE
[ "$1" = run ] || exec "$bundle/ration" "$@"
shift
while [ "$1" != -- ]; do
	case $1 in
	--mem) args="$args --mem $(($2 * 3 / 2))"; shift ;;
	--name) args="$args --name $2"; shift ;;
	*) args="$args $1" ;;
	esac
	shift
done
exec "$bundle/ration" run $args "$@"
`,
		"counts nothing": `#!/bin/sh
bundle=BUNDLE
[ "$1" = run ] || exec "$bundle/ration" "$@"
name=$3
while [ "$1" != -- ]; do shift; done
shift
"$bundle/ration" run --name "$name" --mem 4g -- true
exec "$@"
`,
	} {
		t.Run(name, func(t *testing.T) {
			m := fakeMachine(t)
			mutant := t.TempDir()
			for _, part := range []string{"bin", "python", "coverage.md"} {
				if err := os.Symlink(m.Bundle.file(part), filepath.Join(mutant, part)); err != nil {
					t.Fatal(err)
				}
			}
			text := strings.ReplaceAll(script, "BUNDLE", string(m.Bundle))
			if err := os.WriteFile(filepath.Join(mutant, "ration"), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			m.Bundle = Bundle(mutant)
			for _, o := range run(t, m, "^(limit/driver-x|allocpath/(linear|vmm)$)", Plan{Checks: true}).Checks {
				if o.Verdict != Fail {
					t.Errorf("%s: %s, %s", o.Check, o.Verdict, o.Summary)
				}
			}
		})
	}
}

func TestMeasures(t *testing.T) {
	r := run(t, fakeMachine(t), "cost/(alloc|launch|start|memory)", Plan{Measures: true})
	for _, row := range r.Measures {
		if row.Why != "" || row.Rounds == 0 {
			t.Errorf("%s: %s", row.Name, row.Why)
		}
	}
	if len(r.Measures) < 12 {
		t.Errorf("only %d costs", len(r.Measures))
	}
}

// A stopped process whose launcher has ended uses nothing of the device any more after
// its trial is closed.
func TestCloseEndsOrphans(t *testing.T) {
	testenv.NeedsHost(t)
	trial := fakeMachine(t).newTrial(true)
	if err := trial.open(gib); err != nil {
		t.Fatal(err)
	}
	p, err := trial.start(nil, "sh", "-c", `exec 3<&0; setsid "$0" <&3 &`, trial.native("workload")[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask(0, "init"); err != nil {
		t.Fatal(err)
	}
	pids, err := trial.readPIDs()
	if err != nil || len(pids) != 1 {
		t.Fatal(pids, err)
	}
	for pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if counts, err := trial.driverCounts(pids); err != nil || len(counts) != 1 {
		t.Fatal(counts, err)
	}
	trial.close()
	if counts, err := trial.driverCounts(pids); err != nil || len(counts) != 0 {
		t.Error(counts, err)
	}
	if err := trial.checkNothingLeft(); err != nil {
		t.Error(err)
	}
}
