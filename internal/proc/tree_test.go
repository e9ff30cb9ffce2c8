package proc

import (
	"os"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/termtext"
)

func TestParseCgroup(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string][2]string{
		"0::/user.slice/user-1000.slice/session-3.scope\n": {"/user.slice/user-1000.slice/session-3.scope", ""},
		"0::/system.slice/docker-" + id + ".scope\n":       {"/system.slice/docker-" + id + ".scope", "docker/0123456789ab"},
		"12:pids:/docker/" + id + "\n0::/\n":               {"/docker/" + id, "docker/0123456789ab"},
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-" + id + ".scope\n": {
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-" + id + ".scope", "containerd/0123456789ab"},
		"4:memory:/kubepods/besteffort/pod1-2/" + id + "\n":              {"/kubepods/besteffort/pod1-2/" + id, "kubernetes/0123456789ab"},
		"0::/machine.slice/libpod-" + id + ".scope/container\n":          {"/machine.slice/libpod-" + id + ".scope/container", "podman/0123456789ab"},
		"0::/kubepods.slice/crio-" + id + ".scope\n":                     {"/kubepods.slice/crio-" + id + ".scope", "cri-o/0123456789ab"},
		"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n": {"/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "slurm/123.0"},
		"9:memory:/slurm/uid_1000/job_7/step_batch\n8:cpu:/\n":           {"/slurm/uid_1000/job_7/step_batch", "slurm/7.batch"},
		"0::/lxc.payload.web/init.scope\n":                               {"/lxc.payload.web/init.scope", "lxc/web"},
		"9:cpu:/\n0::/init.scope\n":                                      {"/init.scope", ""},
		"0::/user.slice/\x1b[2Jevil\n":                                   {"/user.slice/?[2Jevil", ""},
		"":                                                               {"", ""},
		"rubbish":                                                        {"", ""},
	} {
		group, container := parseCgroup(text)
		expect.True(t, group == want[0] && container == want[1], text, container, group, want)
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add("0::/system.slice/docker-" + strings.Repeat("a", 64) + ".scope\n")
	f.Add("0::/slurm/uid_1/job_1/step_1\n1::/lxc/x")
	f.Fuzz(func(t *testing.T, text string) {
		group, container := parseCgroup(text)
		expect.True(t, group == termtext.Printable(group) && container == termtext.Printable(container), container, group)
	})
}

func TestAncestor(t *testing.T) {
	parent := os.Getppid()
	if parent == 1 { // as in a container: the first process is nobody's
		parent = 0
	}
	expect.Equal(t, Ancestor(os.Getpid(), func(pid int) bool { return pid == os.Getppid() }), parent, "want the parent")
	expect.Equal(t, Ancestor(os.Getpid(), func(int) bool { return false }), 0, "want none")
}
