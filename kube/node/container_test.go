package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/kube/claim"
	"ration/machine"
)

// runInUserNamespace runs a command in a user namespace as the kubelet makes for pods with
// hostUsers: false: root in it is an ordinary user of the machine.
func runInUserNamespace(args []string) int {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0}}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// containerScript sets a container up as an engine does, by nothing but the spec, in a mount namespace.
// The commands run in its folder.
func containerScript(t *testing.T, spec specs.Spec, commands string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "set -e\ncd %s\n", t.TempDir())
	s.WriteString("mount -t tmpfs container .\ncd \"$PWD\"\nchmod 755 .\nmkdir etc usr proc dev tmp run\nmount --rbind /usr usr\n")
	s.WriteString("mount -t proc proc proc\nfor dir in bin sbin lib lib64; do [ ! -d /$dir ] || ln -s usr/$dir $dir; done\n")
	s.WriteString(": >dev/null\nmount --bind /dev/null dev/null\n")
	for _, m := range spec.Devices[0].ContainerEdits.Mounts {
		st, err := os.Stat(m.HostPath)
		expect.OK(t, err)
		to := "." + m.ContainerPath
		if st.IsDir() {
			fmt.Fprintf(&s, "mkdir -p %s\n", to)
		} else {
			fmt.Fprintf(&s, "[ -e %s ] || { mkdir -p %s && : >%s; }\n", to, filepath.Dir(to), to)
		}
		fmt.Fprintf(&s, "mount --bind %s %s\nmount -o remount,%s %s\n", m.HostPath, to, strings.Join(m.Options, ","), to)
	}
	return s.String() + "set +e\nexec 2>&1\n" + commands
}

const fake = "/run/ration/lib/fakegpu"

func inContainer(command string) string {
	return "chroot . env -i LD_LIBRARY_PATH=" + fake + " FAKEGPU_STATE=/run/ration/job/gpu FAKEGPU_QUIET=1 " + command
}

// A pod's programs are in its ration: as root and as another user, without an environment, and in a
// user namespace. They cannot change it.
func TestContainer(t *testing.T) {
	n := newNode(t)
	_, err := n.Prepare(n.plan(uid, 2*gib))
	expect.OK(t, err)
	namespace := fmt.Sprintf("%s=1 %s ", envNamespace, os.Args[0])
	train := inContainer(fake + "/fake-train 1g 2g\n")
	write := ""
	for _, file := range []string{"/run/ration/job/region.limits", "/etc/ld.so.preload", "/run/ration/lib/libration.so"} {
		write += "chroot . /bin/sh -c ': >>" + file + "'\n" + namespace + "chroot . /bin/sh -c ': >>" + file + "'\n"
	}
	commands := train + strings.Replace(train, "chroot .", "chroot --userspec=65534:65534 .", 1) + namespace + train + write + "chroot . ls /run/ration/job\n"
	out, err := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), commands)).CombinedOutput()
	text := string(out)
	t.Logf("%v\n%s", err, text)
	for what, want := range map[string]int{"now has 1 GiB": 3, "asked for 2 GiB: CUDA_ERROR_OUT_OF_MEMORY": 3, "now has 3 GiB": 0, "Read-only file system": 3, "Permission denied": 3} {
		expect.Equal(t, strings.Count(text, what), want, what, "times")
	}
	expect.True(t, strings.HasSuffix(text, "created\ngpu\nregion\nregion.limits\n"), "the container sees more of the job, or less", text)
	j, err := machine.ReadJob(JobPrefix + uid)
	expect.True(t, err == nil && j.Devices[0].Refused == 3, "the refusals are not the job's", j.Devices, err)
}

// A container has the GPUs of its claim and no others, and each has the limit that the claim has of it: also where it is not the
// machine's first, which it is for the container.
func TestContainerDevices(t *testing.T) {
	both := inContainer(fake+"/fake-train 1g 1g 1g 1g\n") + inContainer("CUDA_VISIBLE_DEVICES=1 "+fake+"/fake-train 1g 1g 1g 1g\n") + inContainer(fake+"/fake-smi\n")
	for name, tt := range map[string]struct {
		memory  []uint64 // of each GPU, in GiB; 0: it is not in the claim
		reverse bool     // the claim names the second first
		steps   string   // of both programs: what they got, what they did not, and that there is no such device
	}{
		"the second":             {memory: []uint64{0, 2}, steps: "+---x"},
		"two, with two rations":  {memory: []uint64{2, 4}, steps: "+---+++-"},
		"the larger one first":   {memory: []uint64{4, 2}, steps: "+++-+---"},
		"the second named first": {memory: []uint64{2, 4}, reverse: true, steps: "+---+++-"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.plan(uid, 0)
			var shares []claim.Share
			for i, g := range n.GPUs {
				if tt.memory[i] > 0 {
					shares = append(shares, claim.Share{Index: g.Index, UUID: g.UUID, Device: g.Name(), Memory: tt.memory[i] * gib})
				}
			}
			if tt.reverse {
				slices.Reverse(shares)
			}
			p.Rations[0].Shares = shares
			_, err := n.Prepare(p)
			expect.OK(t, err)
			out, err := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), both)).CombinedOutput()
			text, steps := string(out), ""
			t.Logf("%v\n%s", err, text)
			for line := range strings.Lines(text) {
				for what, mark := range map[string]string{"now has": "+", ": CUDA_ERROR_OUT_OF_MEMORY": "-", "cuInit: error 100": "x"} {
					if strings.Contains(line, what) {
						steps += mark
					}
				}
			}
			expect.Equal(t, steps, tt.steps, "the programs got")
			expect.Equal(t, strings.Count(text, "NVIDIA H200"), len(shares), "GPUs in the container")
			for _, s := range shares {
				want := fmt.Sprintf("/ %6dMiB", s.Memory>>20)
				expect.True(t, strings.Contains(text, want), "it sees no GPU with", want)
			}
		})
	}
}

// A container that sees all GPUs, as a privileged one does, can use those of its claim only.
func TestContainerThatSeesAllGPUs(t *testing.T) {
	n := newNode(t)
	p, g := n.plan(uid, 0), n.GPUs[1]
	p.Rations[0].Shares = []claim.Share{{Index: g.Index, UUID: g.UUID, Device: g.Name(), Memory: 3 * gib}}
	_, err := n.Prepare(p)
	expect.OK(t, err)
	expect.OK(t, os.Remove(filepath.Join(job.Folder(), JobPrefix+uid, job.MachineName, "present")))
	for device, want := range []int{0, 2} {
		commands := inContainer(fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d %s/fake-train 1g 1g 1g\n", device, fake))
		out, err := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), commands)).CombinedOutput()
		t.Logf("%v\n%s", err, out)
		expect.Equal(t, strings.Count(string(out), "now has"), want, "the program got of device", device)
		expect.True(t, strings.Contains(string(out), "out of memory"), "nothing was refused")
	}
}

// A MIG device is a device of its own: a container has that of its claim and no other, with the limit that the claim has
// of it.
func TestContainerMIG(t *testing.T) {
	n := newNode(t)
	n.FakeGPU = "h100migx3"
	gpus, err := FakeGPUs(n.FakeGPU)
	expect.OK(t, err)
	n.GPUs = gpus
	expect.Must(t, len(gpus) == 3, gpus)
	for i, g := range gpus {
		expect.True(t, g.Index == i && strings.HasPrefix(g.UUID, "MIG-") && strings.HasPrefix(g.Name(), "mig-") && g.Memory == 9984<<20 && !g.MIG, g)
		expect.True(t, strings.HasPrefix(g.Parent, "GPU-") && g.Parent == gpus[0].Parent, g)
	}
	for i, g := range gpus {
		p := n.plan(uid, 0)
		p.Rations[0].Shares = []claim.Share{{Index: g.Index, UUID: g.UUID, Device: g.Name(), Memory: uint64(2+i) * gib}}
		_, err = n.Prepare(p)
		expect.OK(t, err)
		j, err := machine.ReadJob(JobPrefix + uid)
		expect.OK(t, err)
		found := slices.IndexFunc(j.Devices, func(d machine.Device) bool {
			return strings.TrimPrefix(d.UUID, "GPU-") == strings.TrimPrefix(g.UUID, "MIG-")
		}) // a region has the digits only
		expect.True(t, found >= 0 && j.Devices[found].Limit == uint64(2+i)*gib, "the job has", j.Devices)
		commands := inContainer(fake+"/fake-train 1g 1g 1g 1g\n") + inContainer(fake+"/fake-smi\n")
		out, err := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), commands)).CombinedOutput()
		t.Logf("%v\n%s", err, out)
		expect.Equal(t, strings.Count(string(out), "now has"), 1+i, "the program got")
		expect.True(t, strings.Contains(string(out), ": CUDA_ERROR_OUT_OF_MEMORY"), "nothing was refused")
		expect.OK(t, n.Unprepare(uid))
	}
}

// A job's limits are on devices by their UUIDs, also beside a GPU that is divided (MIG) and in the claim of none: in a container
// without that GPU the others have other numbers.
func TestLimitsByUUID(t *testing.T) {
	n := newNode(t)
	n.FakeGPU, n.Driver = "", &gpu.Driver{}
	for _, g := range n.GPUs {
		n.Driver.Devices = append(n.Driver.Devices, gpu.Device{Index: g.Index, UUID: g.UUID, Name: g.Model, Total: limit.Size(g.Memory), MIG: g.Index == 0})
	}
	g := n.GPUs[1]
	p := n.plan(uid, 0)
	p.Rations[0].Shares = []claim.Share{{Index: g.Index, UUID: g.UUID, Device: g.Name(), Memory: 2 * gib}}
	_, err := n.Prepare(p)
	expect.OK(t, err)
	j, err := machine.ReadJob(JobPrefix + uid)
	expect.OK(t, err)
	expect.True(t, len(j.Devices) == 1 && j.Devices[0].UUID == g.UUID && j.Devices[0].Device == 1 && j.Devices[0].Limit == 2*gib,
		"the job has", j.Devices, "want 2 GiB of device 1, which is", g.UUID)
}

// startHolder starts a program in a container of a claim that holds 1 GiB until end is called.
func startHolder(t *testing.T, n *Node) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "sh", "-c", containerScript(t, n.readSpec(t, uid), "exec "+inContainer(fake+"/fake-train --hold 1g\n")))
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	var seen bytes.Buffer
	for buf := make([]byte, 256); !strings.Contains(seen.String(), "now has 1 GiB"); {
		k, err := out.Read(buf)
		seen.Write(buf[:k])
		expect.OK(t, err, seen.String())
	}
	return cmd.Process.Pid, end
}

// A process that outlived its container, or that has the job's files from a tenant, does not keep a claim: it is named.
func TestHostileProcessKeepsNoClaim(t *testing.T) {
	n := newNode(t)
	var warned string
	n.Warn = func(text string) { warned += text }
	_, err := n.Prepare(n.plan(uid, 2*gib))
	expect.OK(t, err)
	pid, _ := startHolder(t, n)
	expect.OK(t, n.Unprepare(uid))
	expect.True(t, strings.Contains(warned, fmt.Sprintf("pid %d (", pid)), "the warning names process", pid, warned)
	checkNothingLeft(t, n)
}

// A container that damages its region gets no second ration beside what it holds when the claim
// is prepared again, as after a restart of the kubelet. When its processes have ended, the claim can be prepared.
func TestHostileRegionGetsNoSecondRation(t *testing.T) {
	n := newNode(t)
	plan := n.plan(uid, 2*gib)
	_, err := n.Prepare(plan)
	expect.OK(t, err)
	_, end := startHolder(t, n)
	j := job.Job{Name: jobName(plan, 0), Path: filepath.Join(job.Folder(), jobName(plan, 0), job.RegionName)}
	before, _ := job.StandingSince(j)
	expect.OK(t, os.Truncate(j.Path, 100))
	_, err = n.Prepare(plan)
	after, standing := job.StandingSince(j)
	expect.True(t, errors.Is(err, job.ErrLiving), "the claim is prepared again beside the process", err)
	expect.True(t, standing && after == before, "the job was replaced")
	end()
	_, err = n.Prepare(plan)
	expect.OK(t, err)
	after, standing = job.StandingSince(j)
	expect.True(t, standing && after != before, "the job was not made again")
}
