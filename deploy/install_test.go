package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

// release is a folder with the files of a release, whose program is a script.
type release struct {
	t      *testing.T
	folder string
}

// add puts a version's tarball into the release: its program prints the version, and it
// has more files than others if they are named.
func (r release) add(version, suffix string, more ...string) string {
	r.t.Helper()
	name := "ration-" + version + "-linux-" + runtime.GOARCH + suffix
	files := map[string]string{
		"bin/ration":            "#!/bin/sh\necho ration " + version + suffix + " '(a stand-in)'\n",
		"share/doc/ration/page": "a page\n",
	}
	for _, file := range more {
		files[file] = "more\n"
	}
	script, err := os.ReadFile("uninstall")
	expect.OK(r.t, err)
	files["lib/ration/uninstall"] = string(script)
	files["lib/ration/files"] = ""
	var list []string
	for file := range files {
		list = append(list, file)
	}
	slices.Sort(list)
	files["lib/ration/files"] = strings.Join(list, "\n") + "\n"

	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, file := range list {
		header := &tar.Header{Name: name + "/" + file, Mode: 0o755, Size: int64(len(files[file]))}
		expect.OK(r.t, archive.WriteHeader(header))
		_, err := archive.Write([]byte(files[file]))
		expect.OK(r.t, err)
	}
	expect.OK(r.t, archive.Close())
	expect.OK(r.t, zip.Close())
	path := filepath.Join(r.folder, name+".tar.gz")
	expect.OK(r.t, os.WriteFile(path, out.Bytes(), 0o600))
	sums, err := os.OpenFile(filepath.Join(r.folder, "SHA256SUMS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	expect.OK(r.t, err)
	defer sums.Close()
	fmt.Fprintf(sums, "%x  %s\n", sha256.Sum256(out.Bytes()), name+".tar.gz")
	return path
}

// install runs install.sh by dash as a user with a home folder, and other variables.
func (r release) install(home string, env ...string) (string, error) {
	shell := "dash" // what sh is on Debian; a stricter one than bash
	if _, err := exec.LookPath(shell); err != nil {
		shell = "sh"
	}
	cmd := exec.Command(shell, "install.sh")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "RATION_URL=file://" + r.folder}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// tree returns all files below a folder.
func tree(t *testing.T, folder string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(folder, path)
			list = append(list, name)
		}
		return err
	})
	expect.OK(t, err)
	return list
}

func wantTexts(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		expect.True(t, strings.Contains(out, text), "no", text, out)
	}
}

// shownInstall returns what docs/install.md says that the script prints, for another prefix,
// but for what depends on where the release and the user's PATH are.
func shownInstall(t *testing.T, prefix string) (lines []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/install.md")
	expect.OK(t, err)
	_, block, found := strings.Cut(string(page), "```text install\n")
	block, _, _ = strings.Cut(block, "```")
	expect.Must(t, found, "docs/install.md does not show what the script prints")
	replace := strings.NewReplacer("/home/anna/.local", prefix, "(region version 5, go1.26.8, amd64)", "(a stand-in)", "https://…", "", "try it    ration", "try it    "+prefix+"/bin/ration")
	for line := range strings.Lines(block) {
		line = replace.Replace(strings.TrimSuffix(line, "\n"))
		if from, name, is := strings.Cut(line, "/ration-0.2.0-linux-"); is {
			lines = append(lines, from, "/ration-0.2.0-linux-", name[strings.Index(name, ".tar"):])
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

func TestInstallScript(t *testing.T) {
	r, home := release{t, t.TempDir()}, t.TempDir()
	prefix := filepath.Join(home, ".local")
	theirs := filepath.Join(prefix, "share/doc/theirs")
	expect.OK(t, os.MkdirAll(theirs, 0o700))
	r.add("0.2.0", "", "share/old/file")
	out, err := r.install(home, "RATION_PREFIX="+prefix) // root's would be /usr/local
	expect.OK(t, err, out)
	wantTexts(t, out, "installed ration 0.2.0 (a stand-in)", "SHA-256 verified", "to        "+prefix+"/bin/ration\n",
		"to undo   sh "+prefix+"/lib/ration/uninstall", "add "+prefix+"/bin to PATH")
	wantTexts(t, out, shownInstall(t, prefix)...)
	want := []string{"bin/ration", "lib/ration/files", "lib/ration/uninstall", "share/doc/ration/page", "share/old/file"}
	got := tree(t, prefix)
	expect.True(t, slices.Equal(got, want), "installed", got, want)

	// A newer version over it: what that does not have goes.
	r = release{t, t.TempDir()}
	r.add("0.3.0", "", "share/new/file")
	out, err = r.install(home, "RATION_PREFIX="+prefix, "PATH="+prefix+"/bin:"+os.Getenv("PATH"))
	expect.OK(t, err, out)
	wantTexts(t, out, "installed ration 0.3.0", "over 0.2.0", "try it    ration learn")
	want[4] = "share/new/file"
	slices.Sort(want)
	got = tree(t, prefix)
	expect.True(t, slices.Equal(got, want), "after the upgrade there are", got, want)

	// As it says.
	undo, err := exec.Command("sh", filepath.Join(prefix, "lib/ration/uninstall")).CombinedOutput()
	expect.OK(t, err, undo)
	got = tree(t, home)
	expect.Equal(t, len(got), 0, "left behind", got)
	_, err = os.Stat(theirs)
	expect.Equal(t, err, nil, "another program's folder is gone")
	_, err = os.Stat(filepath.Join(prefix, "lib"))
	expect.True(t, err != nil, "an empty folder was left")
}

// TestInstallScriptDefault installs to the home folder of a user who is not root.
func TestInstallScriptDefault(t *testing.T) {
	if os.Geteuid() == 0 {
		bin := t.TempDir() // an id that says that this is another user
		expect.OK(t, os.WriteFile(filepath.Join(bin, "id"), []byte("#!/bin/sh\necho 1000\n"), 0o755))
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	}
	r, home := release{t, t.TempDir()}, t.TempDir()
	r.add("0.2.0", "")
	out, err := r.install(home)
	expect.OK(t, err, out)
	got := tree(t, home)
	expect.True(t, slices.Contains(got, ".local/bin/ration"), "installed", got)
}

func TestInstallScriptChooses(t *testing.T) {
	r := release{t, t.TempDir()}
	r.add("0.2.0", "")
	r.add("0.2.0", "-static")
	r.add("0.3.0", "")
	home := t.TempDir()
	prefix := "RATION_PREFIX=" + home
	if out, err := r.install(home, prefix); err == nil {
		t.Errorf("installed one of two: %s", out)
	} else {
		wantTexts(t, out, "RATION_VERSION", "0.2.0 0.3.0")
	}
	for _, c := range []struct{ want, env string }{{"installed ration 0.3.0 ", "RATION_VERSION=0.3.0"}, {"installed ration 0.2.0-static ", "RATION_STATIC=1"}} {
		out, err := r.install(home, prefix, c.env)
		expect.OK(t, err, out)
		wantTexts(t, out, c.want)
	}
}

func TestInstallScriptRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		env   []string
		want  string
	}{
		"a changed tarball": {func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[len(data)-1] ^= 1
			return os.WriteFile(path, data, 0o600)
		}, nil, "is not what the release has"},
		"a tarball cut short": {func(path string) error { return os.Truncate(path, 20) }, nil, "is not what the release has"},
		"no tarball":          {os.Remove, nil, "cannot fetch"},
		"no sums":             {func(path string) error { return os.Remove(filepath.Join(filepath.Dir(path), "SHA256SUMS")) }, nil, "cannot fetch"},
		"another version":     {nil, []string{"RATION_VERSION=9.9.9"}, "has no ration 9.9.9"},
		"no address":          {nil, []string{"RATION_URL="}, "set RATION_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			r, home := release{t, t.TempDir()}, t.TempDir()
			path := r.add("0.2.0", "")
			if c.spoil != nil {
				expect.OK(t, c.spoil(path))
			}
			out, err := r.install(home, append(c.env, "RATION_PREFIX="+home, "TMPDIR="+t.TempDir())...)
			expect.True(t, err != nil, "installed", out)
			wantTexts(t, out, "install.sh: ", c.want)
			got := tree(t, home)
			expect.Equal(t, len(got), 0, "it has installed", got)
		})
	}
}

// TestMakeInstall installs what make built, and removes it.
func TestMakeInstall(t *testing.T) {
	_, err := os.Stat("../bin/ration")
	testenv.Made(t, err)
	dest := t.TempDir()
	run := func(target string) string {
		t.Helper()
		cmd := exec.Command("make", "--no-print-directory", "-C", "..", target, "DESTDIR="+dest, "PREFIX=/opt/it")
		cmd.Env = append(os.Environ(), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		expect.OK(t, err, "make", target, out)
		return string(out)
	}
	wantTexts(t, run("install"), "make uninstall PREFIX=/opt/it")
	got := tree(t, dest)
	for _, want := range []string{"bin/ration", "lib/ration/libration.so", "lib/tmpfiles.d/ration.conf", "lib/sysusers.d/ration.conf", "share/ration/ration.rules.yaml", "share/ration/grafana-dashboard.json", "share/ration/ration-fleet.rules.yaml", "share/ration/ration-kubernetes.rules.yaml", "share/ration/grafana-fleet-dashboard.json", "share/ration/opencost-costs.jq", "share/man/man1/ration.1.gz", "share/man/man1/ration-run.1.gz", "share/man/man7/ration.7.gz",
		"share/bash-completion/completions/ration", "share/zsh/site-functions/_ration", "share/fish/vendor_completions.d/ration.fish", "share/doc/ration/README.md",
		"share/ration/slurm/Makefile", "share/ration/slurm/spank_ration.c", "share/ration/slurm/shards.c", "share/ration/slurm/functions", "share/ration/slurm/prolog", "share/ration/slurm/epilog", "share/ration/slurm/task", "share/ration/slurm/account"} {
		expect.True(t, slices.Contains(got, "opt/it/"+want), "no", want, got)
	}
	for _, file := range got {
		expect.True(t, !strings.HasSuffix(file, ".new"), file, "is left")
	}
	out, err := exec.Command(filepath.Join(dest, "opt/it/bin/ration"), "version").CombinedOutput()
	expect.Equal(t, err, nil, "it does not run", out)
	wantTexts(t, run("uninstall"), "no longer installed in "+dest+"/opt/it")
	got = tree(t, dest)
	expect.Equal(t, len(got), 0, "left behind", got)
}

// TestVersionsSort compares as dpkg and rpm do: what is made before a release sorts
// before it.
func TestVersionsSort(t *testing.T) {
	versions := []string{"0.1.9", "0.2.0~dev", "0.2.0~dev.9+g0123abc", "0.2.0~dev.10+g0000000", "0.2.0~dev.10+g0000000.dirty", "0.2.0", "0.2.1~dev.1+gfffffff", "0.2.1", "0.10.0"}
	t.Run("dpkg", func(t *testing.T) {
		if _, err := exec.LookPath("dpkg"); err != nil {
			t.Skip("there is no dpkg: this is no Debian")
		}
		for i, older := range versions[:len(versions)-1] {
			expect.Equal(t, exec.Command("dpkg", "--compare-versions", older, "lt", versions[i+1]).Run(), nil,
				older, "is not older than", versions[i+1])
		}
	})
	t.Run("rpm", func(t *testing.T) {
		if _, err := exec.LookPath("rpm"); err != nil {
			t.Skip("there is no rpm; make test-install installs it")
		}
		for i, older := range versions[:len(versions)-1] {
			out, err := exec.Command("rpm", "--eval", `%{lua:print(rpm.vercmp("`+older+`-1", "`+versions[i+1]+`-1"))}`).CombinedOutput()
			expect.True(t, err == nil && strings.TrimSpace(string(out)) == "-1", older, "is not older than", versions[i+1], out, err)
		}
	})
}
