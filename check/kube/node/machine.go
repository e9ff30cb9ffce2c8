// Package node starts a node of a cluster on this machine, in separate namespaces: containerd with
// runc, the kubelet and ration's kubelet plugin, with a stand-in GPU. Everything ends with the
// namespaces.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/check/kube/cluster"
)

// insideVariable is set in the first process of the namespaces, to the name of its cgroups.
const insideVariable = "RATION_E2E_INSIDE"

// Folder has all files of the node. Its name is short because paths of sockets must be short.
const Folder = "/run/e2e"

// ErrCannot is returned if this machine cannot run a node.
var ErrCannot = errors.New("this machine cannot have a node of Kubernetes")

// Inside reports whether this process is in the namespaces of Isolate.
func Inside() bool { return os.Getenv(insideVariable) != "" }

// Check returns an error that says what is missing for a node, before anything is started.
func Check() error {
	if out, err := exec.Command("../needs/check").CombinedOutput(); err != nil {
		return fmt.Errorf("%w:\n%s", err, out)
	}
	for _, name := range slices.Concat(cluster.Components, Programs) {
		if _, err := cluster.Program(name); err != nil {
			return fmt.Errorf("%w: %w", ErrCannot, err)
		}
	}
	for variable, what := range map[string]string{PluginVariable: "the plugin", ImageVariable: "the archive of its image"} {
		if _, err := os.Stat(os.Getenv(variable)); err != nil {
			return fmt.Errorf("%w: %s does not name %s: %w (make e2e-node builds it)", ErrCannot, variable, what, err)
		}
	}
	return nil
}

// Isolate runs this program again, with the same arguments, as the first process of new mount, PID,
// network and other namespaces, and returns its exit status. When it ends, the kernel kills all
// processes that it left. Its containers have cgroups of their own, which are removed.
func Isolate() (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cgroup := fmt.Sprintf("ration-e2e-%d", os.Getpid())
	if err := makeCgroups(cgroup); err != nil {
		return 1, fmt.Errorf("%w: %w", ErrCannot, err)
	}
	defer func() { err = errors.Join(err, removeCgroups(cgroup)) }()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"="+cgroup)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("%w: making namespaces: %w", ErrCannot, err)
	}
	return 0, nil
}

// settings are the kernel settings that the kubelet would change for the whole machine. With these
// values it leaves the machine's alone.
var settings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// Furnish turns the namespaces of Isolate into a separate machine: with folders of its own, and its
// own network.
func Furnish() error {
	var all error
	try := func(what string, err error) {
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", what, err))
		}
	}
	try("leaving the mounts of the machine", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	try("mounting /proc", unix.Mount("proc", "/proc", "proc", 0, ""))
	for _, folder := range []string{"/run", "/var/lib/kubelet", "/var/lib/ration", "/var/log"} {
		try("making "+folder, os.MkdirAll(folder, 0o755))
		try("mounting "+folder, unix.Mount("e2e", folder, "tmpfs", 0, "mode=755"))
	}
	for _, folder := range []string{"settings", "kubelet", "cdi"} {
		try("making folders", os.MkdirAll(filepath.Join(Folder, folder), 0o755))
	}
	// Use a separate file system, because the kubelet takes mounts from one file system for the
	// same place.
	try("mounting settings", unix.Mount("e2e", filepath.Join(Folder, "settings"), "tmpfs", 0, "mode=755"))
	for name, value := range settings {
		own := filepath.Join(Folder, "settings", strings.ReplaceAll(name, "/", "."))
		try("writing settings", os.WriteFile(own, []byte(value+"\n"), 0o644))
		try("mounting settings", unix.Mount(own, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""))
	}
	try("sharing mounts", unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")) // with containers, as the kubelet requires
	try("naming the machine", unix.Sethostname([]byte(Name)))
	if all == nil {
		all = loopback()
	}
	return all
}

// loopback gives the machine an address to reach itself that is not a loopback address, because the
// kubelet requires one, and the address at which pods look for the API server.
func loopback() error {
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", Address + "/32", "dev", "lo"},
		{"addr", "add", cluster.ServiceAddress + "/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
