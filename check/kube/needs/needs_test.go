// Package needs tests the script that says what a machine lacks for make e2e-node.
package needs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ration/check/expect"
)

// check runs the script, and returns what the machine lacks.
func check(t *testing.T, cgroups string, change func(*exec.Cmd)) string {
	t.Helper()
	script, err := os.Open("check") // as root: its folder may be closed to others
	expect.OK(t, err)
	defer script.Close()
	cmd := exec.Command("/bin/sh", "-s", cgroups)
	cmd.Stdin, cmd.Dir = script, "/"
	if change != nil {
		change(cmd)
	}
	out, err := cmd.CombinedOutput()
	expect.Equal(t, err != nil, len(out) > 0, string(out), err)
	return string(out)
}

// asNobody lets a command run as another user, who can read a folder that the test has made.
func asNobody(t *testing.T, cmd *exec.Cmd, folder string) {
	t.Helper()
	for _, at := range []string{folder, filepath.Dir(folder)} {
		expect.OK(t, os.Chmod(at, 0o755))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// folder makes files, with their text.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func TestControllers(t *testing.T) {
	first := map[string]string{}
	for _, name := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices"} {
		first[name+"/cgroup.procs"] = ""
	}
	with := func(more string) map[string]string { return map[string]string{"cgroup.controllers": more} }
	without := map[string]string{"cpu/cgroup.procs": "", "memory/cgroup.procs": ""}
	for name, tt := range map[string]struct {
		files map[string]string
		lacks []string
	}{
		"second version":                    {with("cpuset cpu io memory hugetlb pids rdma\n"), nil},
		"second version, no pids":           {with("cpuset cpu io memory\n"), []string{"controller pids ", "(there are: cpuset cpu io memory)"}},
		"second version, cpuset is not cpu": {with("cpuset memory pids\n"), []string{"controller cpu "}},
		"second version, none":              {with("\n"), []string{"controller cpu ", "controller cpuset ", "controller memory ", "controller pids ", "(there are: none)"}},
		"first version":                     {first, nil},
		"first version, two":                {without, []string{"controller cpuacct ", "controller cpuset ", "controller pids ", "controller devices ", "(there are: cpu memory)"}},
		"nothing is mounted":                {nil, []string{"controller memory ", "(there are: none)"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := check(t, folder(t, tt.files), nil)
			expect.Equal(t, strings.Contains(out, "only root"), os.Geteuid() != 0, out)
			expect.Equal(t, strings.Contains(out, "cgroup controller"), len(tt.lacks) > 0, out)
			for _, want := range tt.lacks {
				expect.True(t, strings.Contains(out, want), want, "is not in", out)
			}
		})
	}
}

// Each need has a sentence, and all of them come at once.
func TestLacks(t *testing.T) {
	out := check(t, folder(t, nil), func(cmd *exec.Cmd) {
		tools := t.TempDir()
		id, err := exec.LookPath("id")
		expect.OK(t, err)
		expect.OK(t, os.Symlink(id, filepath.Join(tools, "id")))
		cmd.Env = []string{"PATH=" + tools}
		if os.Geteuid() == 0 {
			asNobody(t, cmd, tools)
		}
	})
	for _, want := range []string{"only root can", "there is no busybox", "there is no ip ", "there is no flock", "there is no unshare", "controller memory"} {
		expect.True(t, strings.Contains(out, want), want, "is not in", out)
	}
}

// A folder of cgroups that cannot be written is named: here, to a user that is not its owner and
// takes itself for root.
func TestReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	root := folder(t, map[string]string{"cgroup.controllers": "cpuset cpu memory pids\n"})
	out := check(t, root, func(cmd *exec.Cmd) {
		asNobody(t, cmd, root)
		asNobody(t, cmd, standIn(t, cmd, map[string]string{"id": "echo 0"}))
	})
	expect.True(t, strings.Contains(out, "cannot be made at "+root), out)
}

func TestNoNamespaces(t *testing.T) {
	out := check(t, folder(t, map[string]string{"cgroup.controllers": "cpuset cpu memory pids\n"}), func(cmd *exec.Cmd) {
		standIn(t, cmd, map[string]string{"id": "echo 0", "busybox": "", "ip": "", "flock": "", "unshare": "exit 1"})
	})
	expect.True(t, strings.Contains(out, "make namespaces") && strings.Count(out, "\n") == 1, out)
}

// standIn gives a command other programs in place of those of the machine, by their script, and returns their folder.
func standIn(t *testing.T, cmd *exec.Cmd, programs map[string]string) string {
	t.Helper()
	tools := t.TempDir()
	for name, script := range programs {
		expect.OK(t, os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH")}
	return tools
}
