package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/embedded"
	"ration/internal/launch"
)

var updateCDI = flag.Bool("update-cdi", false, "write testdata/cdi.json")

// createJob makes a job with 2 GiB of a stand-in machine, and returns its CDI spec, in a folder
// by itself.
func createJob(t *testing.T, name string) (folder string, spec launch.CDISpec, text []byte) {
	t.Helper()
	testenv.Made(t, embedded.Ration.Built(), embedded.FakeGPU.Built())
	t.Setenv("RATION_DIR", filepath.Join(t.TempDir(), "jobs"))
	t.Setenv("FAKEGPU_QUIET", "1")
	folder = t.TempDir()
	file := filepath.Join(folder, "specs", "ration-"+name+".json")
	for _, args := range [][]string{{"create", name, "--mem", "2g", "--fake-gpu", "h200"}, {"cdi", name, "--output", file}} {
		out, err := exec.Command("ration", args...).CombinedOutput()
		expect.OK(t, err, "ration", args, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("ration", "rm", name).CombinedOutput()
		expect.Equal(t, err, nil, out)
	})
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	expect.OK(t, err)
	printed, err := exec.Command("ration", "cdi", name).Output()
	expect.True(t, err == nil && bytes.Equal(printed, text), "it prints another spec than it writes", err, printed)
	return filepath.Dir(file), spec, text
}

// What ration cdi writes is what it always wrote, and the library by which engines read it
// accepts it and adds all of it to a container.
func TestCDISpec(t *testing.T) {
	testenv.NeedsRoot(t, "a user's job has no limits file, and root's is the one that matters")
	folder, spec, text := createJob(t, "train")
	masked := strings.ReplaceAll(string(text), os.Getenv("RATION_DIR"), "/run/ration")
	masked = regexp.MustCompile(`-[0-9a-f]{16}\b`).ReplaceAllString(masked, "-HASH")
	masked = regexp.MustCompile(`CREATED=\d+`).ReplaceAllString(masked, "CREATED=TIME")
	const golden = "testdata/cdi.json"
	if *updateCDI {
		expect.OK(t, os.WriteFile(golden, []byte(masked), 0o644))
	}
	want, err := os.ReadFile(golden)
	expect.True(t, err == nil && masked == string(want), "it is not what", golden, "has (", err, "-update-cdi writes that)", masked)

	check := filepath.Join(t.TempDir(), "cdi")
	build := exec.Command("go", "build", "-o", check, ".")
	build.Dir = "../../check/cdi"
	if out, err := build.CombinedOutput(); err != nil {
		fetch := exec.Command("go", "mod", "download")
		if fetch.Dir = build.Dir; fetch.Run() != nil {
			t.Skip("the library for CDI is not here, and cannot be fetched")
		}
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(check, folder, launch.CDIKind+"=train").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = exit.Stderr
		}
		t.Fatalf("the library refuses it: %v\n%s", err, out)
	}
	var container struct {
		Process struct{ Env []string }
		Mounts  []struct{ Source, Destination string }
	}
	expect.OK(t, json.Unmarshal(out, &container))
	edits := spec.Devices[0].Edits
	expect.True(t, len(container.Mounts) == len(edits.Mounts) && len(container.Process.Env) == len(edits.Env),
		"of", len(edits.Mounts), "mounts and", len(edits.Env), "variables the library added", len(container.Mounts), len(container.Process.Env))
}

// A container that an engine sets up by the spec is in the job: this sets one up as an engine
// does, by nothing but the spec, and runs programs in it without an environment.
func TestCDIMounts(t *testing.T) {
	if os.Geteuid() != 0 || !mayMount() {
		t.Skip("mounting and chroot need root")
	}
	_, spec, _ := createJob(t, "held")
	root, script := t.TempDir(), strings.Builder{}
	fmt.Fprintf(&script, "set -e\ncd %s\n", root)
	script.WriteString("mount -t tmpfs container .\ncd \"$PWD\"\nchmod 755 .\nmkdir etc usr proc dev tmp run\nmount --rbind /usr usr\n")
	script.WriteString("mount -t proc proc proc\nfor dir in bin sbin lib lib64; do [ ! -d /$dir ] || ln -s usr/$dir $dir; done\n")
	script.WriteString(": >dev/null\nmount --bind /dev/null dev/null\n")
	for _, m := range spec.Devices[0].Edits.Mounts {
		st, err := os.Stat(m.HostPath)
		expect.OK(t, err)
		to := "." + m.ContainerPath
		if st.IsDir() {
			fmt.Fprintf(&script, "mkdir -p %s\n", to)
		} else {
			fmt.Fprintf(&script, "[ -e %s ] || { mkdir -p %s && : >%s; }\n", to, filepath.Dir(to), to)
		}
		fmt.Fprintf(&script, "mount --bind %s %s\nmount -o remount,%s %s\n", m.HostPath, to, strings.Join(m.Options, ","), to)
	}
	const fake = "/run/ration/lib/fakegpu"
	env := "env -i LD_LIBRARY_PATH=" + fake + " FAKEGPU_STATE=/run/ration/job/gpu FAKEGPU_QUIET=1 "
	script.WriteString("set +e\nexec 2>&1\n")
	script.WriteString("chroot . " + env + fake + "/fake-train 1g 2g\n")
	script.WriteString("chroot --userspec=65534:65534 . " + env + fake + "/fake-train 1g 2g\n")
	script.WriteString("chroot . /bin/sh -c ': >>/run/ration/job/region.limits'\nchroot . /bin/sh -c ': >>/etc/ld.so.preload'\n")
	script.WriteString("chroot . /bin/sh -c 'echo >>/run/ration/job/created; : >>/run/ration/lib/libration.so'\n")
	// Nor can root there move the job away.
	script.WriteString("chroot . mv /run/ration/job /run/ration/moved\nchroot . mv /run/ration /run/moved\n")
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script.String()).CombinedOutput()
	text := string(out)
	t.Logf("%v\n%s", err, text)
	for what, want := range map[string]int{"now has 1 GiB": 2, "asked for 2 GiB: CUDA_ERROR_OUT_OF_MEMORY": 2, "now has 3 GiB": 0, "Read-only file system": 5, "Device or resource busy": 1} {
		expect.Equal(t, strings.Count(text, what), want, what, "times")
	}
	why, err := exec.Command("ration", "why", "held").CombinedOutput()
	expect.True(t, err == nil && strings.Count(string(why), "asked for 2 GiB") == 2, "the refusals are not the job's", err, why)
}
