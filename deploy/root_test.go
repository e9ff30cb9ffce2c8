package deploy_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// made returns a file that scripts/test-install made, by a pattern, and skips where it
// did not run.
func made(t *testing.T, pattern string) string {
	t.Helper()
	folder := os.Getenv("RATION_TEST_INSTALL")
	if folder == "" {
		t.Skip("make test-install makes what this needs")
	}
	found, err := filepath.Glob(filepath.Join(folder, pattern))
	expect.Must(t, err == nil && len(found) == 1, found, err, "for", pattern, "want one file")
	return found[0]
}

// root is a folder in which programs run as if there were nothing else.
type root struct {
	t   *testing.T
	dir string
}

// newRoot mounts /proc in a folder, with the processes of the namespace that
// scripts/test-install makes, which also ends the mount if this test cannot.
func newRoot(t *testing.T, dir string) root {
	t.Helper()
	proc := filepath.Join(dir, "proc")
	expect.OK(t, os.MkdirAll(proc, 0o755))
	expect.OK(t, unix.Mount("proc", proc, "proc", 0, ""), "mounting", proc)
	t.Cleanup(func() {
		expect.Equal(t, unix.Unmount(proc, 0), nil, "unmounting", proc)
	})
	return root{t, dir}
}

// debianRoot unpacks a clean Debian.
func debianRoot(t *testing.T) root {
	t.Helper()
	archive, dir := made(t, "debian.tar"), t.TempDir()
	out, err := exec.Command("tar", "-C", dir, "--numeric-owner", "-xpf", archive).CombinedOutput()
	expect.OK(t, err, "unpacking", archive, out)
	expect.OK(t, os.Chmod(dir, 0o755))
	return newRoot(t, dir)
}

func (r root) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	if cmd.Path = name; !filepath.IsAbs(name) {
		cmd.Path, cmd.Err = "/usr/bin/env", nil // looks for it in the root
		cmd.Args = append([]string{"env"}, cmd.Args...)
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	return cmd
}

func (r root) run(name string, args ...string) string {
	r.t.Helper()
	out, err := r.command(name, args...).CombinedOutput()
	expect.OK(r.t, err, name, strings.Join(args, " "), out)
	return string(out)
}

// copyIn copies a file of this machine into the root.
func (r root) copyIn(from, to string) {
	r.t.Helper()
	data, err := os.ReadFile(from)
	expect.OK(r.t, err)
	to = filepath.Join(r.dir, to)
	expect.OK(r.t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)))
}

// paths returns all paths of the root, but those in which the package manager keeps its
// own accounts.
func (r root) paths() (list []string) {
	r.t.Helper()
	skip := []string{"proc", "var/lib/dpkg", "var/lib/rpm", "usr/lib/sysimage", "var/log", "var/cache", "root"}
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(r.dir, path)
		if slices.Contains(skip, name) {
			return fs.SkipDir
		}
		list = append(list, name)
		return nil
	})
	expect.OK(r.t, err)
	return list
}

// wantLeft checks that the root has the paths that it had before, and no others.
func (r root) wantLeft(before ...string) {
	r.t.Helper()
	for _, path := range r.paths() {
		expect.True(r.t, slices.Contains(before, path), "left behind", path)
	}
}

// job is a shell that runs as a job in a root. It executes what it is told, which may be
// a program that does so, too.
type job struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (r root) startJob(args ...string) *job {
	r.t.Helper()
	j := &job{t: r.t, cmd: r.command("/usr/bin/ration", append(append([]string{"run"}, args...), "--", "sh")...)}
	in, err := j.cmd.StdinPipe()
	expect.OK(r.t, err)
	out, err := j.cmd.StdoutPipe()
	expect.OK(r.t, err)
	j.in, j.out, j.cmd.Stderr = in, bufio.NewScanner(out), os.Stderr
	expect.OK(r.t, j.cmd.Start())
	r.t.Cleanup(func() { // if the test failed earlier; the input's end ends it
		_ = in.Close()
		_ = j.cmd.Wait()
	})
	return j
}

// want tells the job a line, and waits for its answer, whose first word it checks.
func (j *job) want(answer, line string) {
	j.t.Helper()
	_, err := io.WriteString(j.in, line+"\n")
	expect.OK(j.t, err, "telling the job", line)
	expect.Must(j.t, j.out.Scan(), "the job ended at", line, j.out.Err())
	got, _, _ := strings.Cut(j.out.Text(), " ")
	expect.Must(j.t, got == answer, line, "the job answered", j.out.Text(), answer)
}

// start runs a CUDA program in the job, which then gets the lines. A shell reads as much
// as there is: the next line is written when it has read this one.
func (j *job) start() {
	j.t.Helper()
	j.want("started", "echo started; /opt/workload")
	j.want("ok", "init")
}

// end ends the shell.
func (j *job) end() {
	j.t.Helper()
	expect.Equal(j.t, errors.Join(j.in.Close(), j.cmd.Wait()), nil, "the job ended")
}

// used returns what the processes of the job "train" hold, as ration ps sees it, and how
// many they are.
func (r root) used() (bytes uint64, processes int) {
	r.t.Helper()
	out, err := r.command("ration", "ps", "--json").Output()
	expect.OK(r.t, err, "ration ps")
	var list struct {
		Jobs []struct {
			Job       string
			Devices   []struct{ Used uint64 }
			Processes []struct{ State string }
		}
	}
	expect.OK(r.t, json.Unmarshal(out, &list), "reading what ration ps says", out)
	for _, j := range list.Jobs {
		if j.Job == "train" && len(j.Devices) > 0 {
			return j.Devices[0].Used, len(j.Processes)
		}
	}
	r.t.Fatalf("ration ps does not show the job: %s", out)
	return 0, 0
}

const mib = 1 << 20

// TestDebianRoot installs the package, upgrades it while a job runs, and removes it while
// another runs.
func TestDebianRoot(t *testing.T) {
	r := debianRoot(t)
	r.copyIn(made(t, "old/dist/*.deb"), "opt/old.deb")
	r.copyIn(made(t, "new/dist/*.deb"), "opt/new.deb")
	r.copyIn("../build/workload/workload", "opt/workload")
	clean := r.paths()

	r.run("dpkg", "--install", "/opt/old.deb")
	wantTexts(t, r.run("ration", "version"), "ration 0.0.1 ")
	wantTexts(t, r.run("ration", "doctor", "--fake-gpu", "h200"), "pass  interception", "All checks passed")
	wantTexts(t, r.run("ration", "selftest"), "pass  limit held")
	// The program's constructor runs before Go, whatever the C library.
	out := r.run("sh", "-c", "trap '' PIPE; ration run --mem 1g -- sed -n 's/SigIgn:[^0-9a-f]*/ignored /p' /proc/self/status")
	_, digits, _ := strings.Cut(strings.TrimSpace(out), "ignored ")
	if ignored, err := strconv.ParseUint(digits, 16, 64); err != nil || ignored>>(uint(unix.SIGPIPE)-1)&1 == 0 {
		t.Errorf("a signal that was ignored is not any more: %s", out)
	}
	r.wantSlurm("usr")
	for _, path := range []string{"run/ration", "etc/ld.so.preload", "usr/lib/tmpfiles.d/ration.conf", "usr/lib/sysusers.d/ration.conf", "usr/lib/systemd/system/ration-agent.service", "usr/lib/systemd/system/ration-agent.socket", "usr/share/man/man1/ration-run.1.gz",
		"usr/share/bash-completion/completions/ration", "usr/share/zsh/vendor-completions/_ration", "usr/share/doc/ration/sbom.spdx.json"} {
		_, err := os.Stat(filepath.Join(r.dir, path))
		expect.Equal(t, err, nil, "the package did not install", path)
	}

	j := r.startJob("--name", "train", "--mem", "2g", "--fake-gpu", "h200")
	j.start()
	j.want("ok", "alloc 104857600")
	held, processes := r.used()
	expect.True(t, processes == 1 && held >= 100*mib, "before the upgrade", held, "bytes of", processes, "processes")

	r.run("dpkg", "--install", "/opt/new.deb")
	out = r.run("ration", "version")
	expect.True(t, !strings.Contains(out, "0.0.1"), "the upgrade did nothing", out)
	if now, processes := r.used(); now != held || processes != 1 {
		t.Errorf("after the upgrade: %d bytes of %d processes, want %d of one", now, processes, held)
	}
	// The process goes on, with a limit that the new command changes.
	j.want("ok", "alloc 104857600")
	now, _ := r.used()
	expect.Equal(t, now, held+100*mib, "bytes, as the new ration shows")
	j.want("oom", "alloc 2147483648")
	r.run("ration", "limit", "train", "4g")
	j.want("ok", "alloc 2147483648")
	j.want("ok", "quit")
	// So does the job: its next process finds the old library where it was.
	j.start()
	j.want("oom", "alloc 4294967296")
	if _, processes := r.used(); processes != 1 {
		t.Errorf("the job's next process is not in it, or an earlier one still is: %d", processes)
	}

	// Removed, and even purged, under the job: what that needs stays.
	r.run("dpkg", "--purge", "ration")
	_, err := os.Stat(filepath.Join(r.dir, "usr/bin/ration"))
	expect.True(t, err != nil, "the program is still there")
	j.want("ok", "alloc 104857600")
	j.want("oom", "alloc 4294967296")
	j.want("ok", "quit")
	j.start()
	j.want("oom", "alloc 4294967296")
	j.want("ok", "quit")
	j.end()

	// Without one it leaves nothing.
	r.run("dpkg", "--install", "/opt/new.deb")
	r.run("dpkg", "--purge", "ration")
	r.wantLeft(clean...)

	// A preload list that somebody uses is not the package's to remove.
	list := filepath.Join(r.dir, "etc/ld.so.preload")
	r.copyIn("../build/libration.so", "opt/other.so")
	expect.OK(t, os.WriteFile(list, []byte("/opt/other.so\n"), 0o644))
	r.run("dpkg", "--install", "/opt/new.deb")
	r.run("dpkg", "--purge", "ration")
	text, err := os.ReadFile(list)
	expect.True(t, err == nil && string(text) == "/opt/other.so\n", "the list is", text, err)
}

// TestRpmRoot does the same by rpm, into a root that has none itself.
func TestRpmRoot(t *testing.T) {
	r := debianRoot(t)
	clean := r.paths()
	rpm := func(args ...string) {
		t.Helper()
		// Debian's packages are not in the accounts of rpm, so there is no glibc.
		out, err := exec.Command("rpm", append([]string{"--root", r.dir, "--nodeps"}, args...)...).CombinedOutput()
		expect.OK(t, err, "rpm", strings.Join(args, " "), out)
	}
	rpm("--install", made(t, "old/dist/*.rpm"))
	wantTexts(t, r.run("ration", "version"), "ration 0.0.1 ")
	rpm("--upgrade", made(t, "new/dist/*.rpm"))
	wantTexts(t, r.run("ration", "doctor", "--fake-gpu", "h200"), "All checks passed")
	for _, path := range []string{"run/ration", "etc/ld.so.preload", "usr/share/zsh/site-functions/_ration"} {
		_, err := os.Stat(filepath.Join(r.dir, path))
		expect.Equal(t, err, nil, "the upgrade has removed, or never made", path)
	}
	r.wantSlurm("usr")
	rpm("--erase", "ration")
	// Folders of all, which other packages own where rpm is at home.
	r.wantLeft(append(clean, "usr/lib/systemd", "usr/lib/systemd/system", "usr/lib/tmpfiles.d", "usr/lib/sysusers.d", "usr/share/fish", "usr/share/fish/vendor_completions.d", "usr/share/zsh", "usr/share/zsh/site-functions")...)
}

// TestTarballRoot installs the tarball by the script, as root has it.
func TestTarballRoot(t *testing.T) {
	r := debianRoot(t)
	r.copyDist(made(t, "new/dist"))
	clean := r.paths()
	out := r.run("env", "RATION_URL=file:///opt/dist", "sh", "/opt/dist/install.sh")
	wantTexts(t, out, "/usr/local/bin/ration", "SHA-256 verified", "try it    ration learn")
	wantTexts(t, r.run("ration", "selftest"), "pass  limit held")
	r.wantSlurm("usr/local")
	r.run("sh", "/usr/local/lib/ration/uninstall")
	if err := errors.Join(os.RemoveAll(filepath.Join(r.dir, "run/ration")), os.RemoveAll(filepath.Join(r.dir, "var/lib/ration"))); err != nil {
		t.Fatal(err) // what commands unpacked
	}
	r.wantLeft(clean...)
}

// wantSlurm checks that there is all that a Slurm node needs, and that its scripts can be run.
func (r root) wantSlurm(prefix string) {
	r.t.Helper()
	for name, mode := range map[string]fs.FileMode{"Makefile": 0o644, "spank_ration.c": 0o644, "shards.c": 0o644, "functions": 0o644, "prolog": 0o755, "epilog": 0o755, "task": 0o755, "account": 0o755} {
		st, err := os.Stat(filepath.Join(r.dir, prefix, "share/ration/slurm", name))
		expect.True(r.t, err == nil && st.Mode() == mode, "for Slurm", name, st, err, mode)
	}
}

func (r root) copyDist(dist string) {
	r.t.Helper()
	entries, err := os.ReadDir(dist)
	expect.OK(r.t, err)
	for _, e := range entries {
		r.copyIn(filepath.Join(dist, e.Name()), "opt/dist/"+e.Name())
	}
}

// TestMuslRoot installs the static program where there is no C library at all but
// busybox's own, as in an image of Alpine.
func TestMuslRoot(t *testing.T) {
	dist := made(t, "new/dist")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("there is no busybox; make test-install installs it")
	}
	r := newRoot(t, t.TempDir())
	r.copyIn(busybox, "bin/busybox")
	r.copyDist(dist)
	for _, dir := range []string{"usr/bin", "tmp", "run", "root", "dev"} {
		expect.OK(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	expect.OK(t, unix.Mknod(filepath.Join(r.dir, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	r.run("/bin/busybox", "--install", "-s", "/bin")
	expect.OK(t, os.Symlink("/bin/env", filepath.Join(r.dir, "usr/bin/env")))
	out := r.run("env", "RATION_URL=file:///opt/dist", "sh", "/opt/dist/install.sh")
	wantTexts(t, out, "-static.tar.gz, SHA-256 verified", "static    it needs no C library")
	wantTexts(t, r.run("ration", "ps"), "There are no jobs")
	wantTexts(t, r.run("ration", "help"), "ration")
	for _, args := range [][]string{{"run", "--mem", "1g", "--", "true"}, {"library"}, {"demo", "--quick"}, {"selftest"}, {"learn"}} {
		if out, err := r.command("ration", args...).CombinedOutput(); err == nil {
			t.Errorf("ration %q preloads a library that needs glibc: %s", args, out)
		} else {
			wantTexts(t, string(out), "the library needs glibc, as CUDA does, and this machine has none")
		}
	}
	r.run("sh", "/usr/local/lib/ration/uninstall")
}
