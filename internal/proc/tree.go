package proc

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"ration/internal/termtext"
)

// maxAncestors bounds how many ancestors are checked.
const maxAncestors = 64

// Ancestor returns the nearest ancestor of pid for which is returns true, or 0.
func Ancestor(pid int, is func(pid int) bool) int {
	for range maxAncestors {
		if pid = Parent(pid); pid <= 1 {
			return 0
		}
		if is(pid) {
			return pid
		}
	}
	return 0
}

// Cgroup returns the path of a process's cgroup, and the container or batch job that it belongs to,
// as parseCgroup does; "" if unknown.
func Cgroup(pid int) (group, container string) {
	text, err := readStart("/proc/"+strconv.Itoa(pid)+"/cgroup", 16<<10)
	if err != nil {
		return "", ""
	}
	return parseCgroup(string(text))
}

// containerID matches the name of a container's cgroup: a prefix and 64 hexadecimal digits.
var containerID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:([a-z-]+)[-:])?([0-9a-f]{64})(?:\.scope)?$`)
})

// engines maps the prefix of a cgroup's name to the name of the engine.
var engines = map[string]string{
	"docker": "docker", "cri-containerd": "containerd", "containerd": "containerd", "crio": "cri-o", "crio-conmon": "cri-o",
	"libpod": "podman", "libpod-conmon": "podman",
}

// slurmJob finds the job of Slurm, and its step if there is one.
var slurmJob = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`/(?:slurm|slurmstepd)(?:[^/]*)(?:/[^/]+)*?/job_(\d+)(?:/step_([0-9a-z_]+))?`)
})

// lxcName finds the name of a container of LXC.
var lxcName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`/lxc(?:\.payload)?[./]([A-Za-z0-9_.-]+)`)
})

// parseCgroup returns a path from /proc/PID/cgroup: the first that names a container, otherwise
// that of version 2, otherwise the first. The container has a form like docker/0123456789ab,
// containerd/…, kubernetes/…, podman/…, cri-o/…, lxc/NAME, slurm/JOB.STEP.
func parseCgroup(text string) (group, container string) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || parts[2] == "" {
			continue
		}
		if name := containerOf(parts[2]); name != "" {
			return termtext.Printable(parts[2]), termtext.Printable(name)
		}
		if group == "" || parts[0] == "0" {
			group = parts[2]
		}
	}
	return termtext.Printable(group), ""
}

func containerOf(group string) string {
	parts := strings.Split(path.Clean(group), "/")
	for i := len(parts) - 1; i > 0; i-- {
		m := containerID().FindStringSubmatch(parts[i])
		if m == nil {
			continue
		}
		engine := engines[m[1]]
		switch {
		case engine != "":
		case strings.Contains(group, "kubepods"):
			engine = "kubernetes"
		case parts[i-1] != "" && engines[parts[i-1]] != "":
			engine = engines[parts[i-1]] // /docker/ID
		default:
			engine = "container"
		}
		return engine + "/" + m[2][:12]
	}
	if m := slurmJob().FindStringSubmatch(group); m != nil {
		if m[2] != "" {
			return "slurm/" + m[1] + "." + m[2]
		}
		return "slurm/" + m[1]
	}
	if m := lxcName().FindStringSubmatch(group); m != nil {
		return "lxc/" + m[1]
	}
	return ""
}
