//go:build !bundle

package gputest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/embedded"
)

// These tests check the checks: that they pass on a correct ration, and fail on a wrong one.

func init() { standIn = useStandIn }

// useStandIn prepares a testbed whose driver is fakegpu, with the bundle of this tree.
func useStandIn(b *testbed) (err error) {
	if *bundleFlag == "" {
		if b.bundle, err = filepath.Abs("../../build/gpu-test"); err != nil {
			return err
		}
	}
	if err := os.Setenv("RATION_LIB", filepath.Join(b.scratch, "r", "lib")); err != nil {
		return err
	}
	driver, err := embedded.FakeGPU.Unpack()
	if err != nil {
		return err
	}
	b.nvml = filepath.Join(driver, "libnvidia-ml.so.1")
	b.vars = []string{"FAKEGPU=" + cmp.Or(os.Getenv("FAKEGPU"), "h200"), "FAKEGPU_STRICT=1", "FAKEGPU_STATE=" + filepath.Join(b.scratch, "gpu"), "LD_LIBRARY_PATH=" + driver}
	for _, entry := range b.vars {
		key, value, _ := strings.Cut(entry, "=")
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	return nil
}

// runAgain runs some checks in a process of its own, and returns the names of those with
// each result. They must be of this device.
func runAgain(t *testing.T, device, run, bundle string, env ...string) map[string][]string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run="+run, "-bundle="+bundle)
	cmd.Env = append(os.Environ(), env...)
	out, _ := cmd.CombinedOutput() // which checks failed is in the output
	results := map[string][]string{}
	for _, found := range regexp.MustCompile(`(?m)^ +--- (PASS|FAIL|SKIP): (\S+)`).FindAllStringSubmatch(string(out), -1) {
		results[found[1]] = append(results[found[1]], found[2])
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", out)
		}
	})
	expect.True(t, strings.Contains(string(out), ", device "+device+", "), "device", device, "was not tested")
	return results
}

// The checks pass on devices that others have, too.
func TestOtherDevices(t *testing.T) {
	testenv.NeedsHost(t)
	bundle := openTestbed(t).bundle
	for name, c := range map[string]struct {
		env         []string
		device, run string
		least       int
	}{
		"blocks as real":    {[]string{"FAKEGPU_BLOCK=2m"}, "0", "TestLimit/driver-x1$|TestAllocpath", 13},
		"the second device": {[]string{"FAKEGPU=h200x2", "CUDA_VISIBLE_DEVICES=1"}, "1", "TestLimit/driver-x1$|TestAllocpath/linear|TestAllocpath/ipc|TestPID/host-x8", 4},
	} {
		t.Run(name, func(t *testing.T) {
			got := runAgain(t, c.device, c.run, bundle, c.env...)
			expect.True(t, len(got["FAIL"]) <= 0 && len(got["PASS"]) >= c.least, got)
		})
	}
}

// A ration that grants half as much again, and one that counts nothing, fail.
func TestChecksCanFail(t *testing.T) {
	testenv.NeedsHost(t)
	bundle := openTestbed(t).bundle
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
			mutant := t.TempDir()
			expect.OK(t, os.Symlink(filepath.Join(bundle, "bin"), filepath.Join(mutant, "bin")))
			expect.OK(t, os.WriteFile(filepath.Join(mutant, "ration"), []byte(strings.ReplaceAll(script, "BUNDLE", bundle)), 0o700))
			got := runAgain(t, "0", "TestLimit/^driver-x|TestAllocpath/^(linear|vmm)$", mutant)
			expect.True(t, len(got["FAIL"]) >= 4 && len(got["PASS"])+len(got["SKIP"]) <= 0, "not all failed", got)
		})
	}
}

// A stopped process whose launcher has ended uses nothing of the device any more after
// its trial is closed. A process of another trial goes on.
func TestCloseEndsOrphans(t *testing.T) {
	testenv.NeedsHost(t)
	b := openTestbed(t)
	other := b.newTrial(t)
	defer other.close()
	stays := other.startHolding(mib)
	trial := b.newTrial(t)
	trial.open(gib)
	p := trial.start(nil, "sh", "-c", `exec 3<&0; setsid "$0" <&3 &`, trial.native("workload")[0])
	p.ask(0, "init")
	pids, err := trial.readPIDs()
	expect.Must(t, err == nil && len(pids) == 1, pids, err)
	for pid := range pids {
		expect.OK(t, unix.Kill(pid, unix.SIGSTOP))
	}
	counts, err := trial.driverCounts(pids)
	expect.Must(t, err == nil && len(counts) == 1, counts, err)
	trial.close()
	counts, err = trial.driverCounts(pids)
	expect.True(t, err == nil && len(counts) == 0, counts, err)
	trial.checkNothingLeft()
	stays.ask(0, "alloc %d", mib)
}
