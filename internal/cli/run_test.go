package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/embedded"
)

// TestRun runs real programs through the real library, against the stand-in
// driver.
func TestRun(t *testing.T) {
	testenv.Made(t, embedded.Ration.Built(), embedded.FakeGPU.Built(), embedded.Probe.Built())
	makeMountPoints(t)
	bin := t.TempDir()
	testenv.Made(t, compile(bin))
	runScripts(t, "testdata/run", func(env *testscript.Env) error {
		work := env.Getenv("WORK")
		env.Defer(func() { unmountAll(t, work) })
		if out, err := exec.Command("install", "-m755", "testdata/nobody.sh", "testdata/policy.sh", work).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if abs, err := filepath.Abs("../../deploy"); err == nil {
			env.Setenv("DEPLOY", abs)
		}
		env.Setenv("PATH", bin+":"+env.Getenv("PATH")+":/sbin:/usr/sbin")
		env.Setenv("FAKEGPU_QUIET", "1")
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.Getenv("WORK"), "cache")) // what ration doctor remembers
		env.Setenv("ESC", "\x1b[2J")
		// What a terminal might obey, as a regular expression.
		env.Setenv("CONTROL", `[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]`)
		env.Setenv("DRIVER", filepath.Join(bin, "driver"))
		return nil
	})
}

// mayHavePolicy reports whether policy.sh can make its machine here: in namespaces, with layers over
// folders of the system's.
func mayHavePolicy(t *testing.T) bool {
	const layers = `mount -t tmpfs tmpfs "$1"; mkdir "$1/u" "$1/w"; mount -t overlay -o "lowerdir=/etc,upperdir=$1/u,workdir=$1/w" overlay /etc; unshare -Ur true`
	out, err := exec.Command("unshare", "-mpf", "--kill-child", "--mount-proc", "sh", "-ec", layers, "sh", t.TempDir()).CombinedOutput()
	if err != nil {
		t.Logf("no policy can be tried here: %v, %s", err, out)
	}
	return err == nil
}

// unmountAll unmounts what jobs of root's have left mounted below a folder.
func unmountAll(t *testing.T, folder string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || os.Geteuid() != 0 {
		return
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, folder+"/") {
			t.Errorf("%s is still mounted", at)
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

// What root's tests mount is not mounted for any other process, so that nothing of it is left
// when a test is killed.
func TestMountsArePrivate(t *testing.T) {
	if os.Geteuid() != 0 || !mayMount() {
		t.Skip("only root, where the kernel allows it, mounts anything in these tests")
	}
	private, err := testenv.MountsArePrivate()
	expect.Must(t, err == nil && private, "no mount namespace of their own", err)
	at := t.TempDir()
	expect.OK(t, syscall.Mount("ration-test", at, "tmpfs", 0, "size=64k"))
	defer func() { _ = syscall.Unmount(at, 0) }()
	others, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getppid()))
	expect.True(t, err == nil && !strings.Contains(string(others), at), "the process that started the tests has", at, "mounted, too", err)
}

// makeMountPoints makes what --keep mounts on, if root runs the tests, and removes it
// again.
func makeMountPoints(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	const folder, file = "/run/ration", "/etc/ld.so.preload"
	if os.Mkdir(folder, 0o755) == nil {
		t.Cleanup(func() { _ = os.Remove(folder) }) // fails if it is in use by now
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return
	}
	t.Cleanup(func() {
		if st, err := os.Stat(file); err == nil && st.Size() == 0 {
			_ = os.Remove(file)
		}
	})
	expect.OK(t, f.Close())
}

// compile compiles the program that the scripts run, linked with the driver and not.
func compile(bin string) error {
	cc := cmp.Or(os.Getenv("CC"), "cc") // make arm64 sets a cross compiler
	if _, err := exec.LookPath(cc); err != nil {
		return fmt.Errorf("no compiler for the program under test: %w", err)
	}
	if err := os.Setenv(embedded.EnvFolder, filepath.Join(bin, "lib")); err != nil {
		return err
	}
	driver, err := embedded.FakeGPU.Unpack()
	if err := errors.Join(err, os.Unsetenv(embedded.EnvFolder)); err != nil {
		return err
	}
	if err := os.Symlink(driver, filepath.Join(bin, "driver")); err != nil {
		return err
	}
	for name, flags := range map[string][]string{
		"eat":        {"-ldl"},
		"eat-linked": {"-DLINKED", "-L" + driver, "-l:libcuda.so.1", "-ldl"},
	} {
		args := append([]string{"-o", filepath.Join(bin, name), "testdata/eat.c"}, flags...)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("compiling: %w: %s", err, out)
		}
	}
	return nil
}

// mayMount reports whether this user can have a mount namespace, and what --keep
// mounts on exists.
func mayMount() bool {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		for _, path := range []string{"/etc/ld.so.preload", "/run/ration"} {
			if _, err := os.Stat(path); err != nil {
				return false
			}
		}
		attr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	cmd := exec.Command("true")
	cmd.SysProcAttr = attr
	return cmd.Run() == nil
}

// TestRunAsUser runs TestRun as an ordinary user; in a short run, its main scripts.
func TestRunAsUser(t *testing.T) {
	testenv.NeedsRoot(t, "TestRun runs as an ordinary user already")
	const nobody = 65534
	makeMountPoints(t)
	dir, err := os.MkdirTemp("", "ration-user-")
	expect.OK(t, err)
	defer os.RemoveAll(dir)
	exe, err := os.Executable()
	expect.OK(t, err)
	// As in the repository, which an ordinary user may not be able to read.
	here, home := filepath.Join(dir, "internal/cli"), filepath.Join(dir, "home")
	copied := filepath.Join(here, "cli.test")
	expect.OK(t, errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(here, 0o755), os.Mkdir(home, 0o700), os.Chown(home, nobody, nobody)))
	expect.OK(t, errors.Join(exec.Command("install", "-m755", exe, copied).Run(), exec.Command("cp", "-r", "testdata", here).Run(),
		exec.Command("cp", "-r", "../../deploy", "../../python", dir).Run()))
	scripts := "^TestRun$"
	if testing.Short() {
		scripts += "/^(run|create|state|keep|hostile)$"
	}
	cmd := exec.Command(copied, "-test.run="+scripts, "-test.v")
	cmd.Dir = here
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if strings.Contains(string(out), "--- SKIP: TestRun ") {
		t.Skipf("%s", out)
	}
}
