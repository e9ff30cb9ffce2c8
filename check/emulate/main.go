// Command emulate runs a command on a machine that also executes programs for another processor:
// every program for arm64 that the command starts, in any language and with any environment, runs
// in qemu-user.
//
//	emulate QEMU SYSROOT COMMAND [ARGUMENT...]
//
// It uses a binfmt_misc of its own in a user namespace, which needs Linux 6.7 and no privilege, and
// which no other process sees. The C library of SYSROOT is mounted over this machine's folder of
// libraries. QEMU must be linked statically, so that variables of the dynamic linker (LD_PRELOAD)
// affect only the program.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the name with which the command starts itself in the namespaces.
const inside = "emulate: inside"

const binfmt = "/proc/sys/fs/binfmt_misc"

// arm64 is a line for binfmt_misc. It matches 64-bit little-endian ELF files for machine 0xb7, executable or
// position-independent. F opens the interpreter now, O passes it the program as a descriptor, P keeps argv[0],
// and C honours the program's set-uid bits.
const arm64 = `:arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00` +
	`:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:%s:POCF`

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: emulate QEMU SYSROOT COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	var err error
	if os.Args[0] == inside {
		err = become(os.Args[1], os.Args[2], os.Args[3:])
	} else {
		err = enter(os.Args[1:])
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "emulate:", err)
		os.Exit(1)
	}
}

// enter starts this program in new namespaces. Users have the same numbers there as outside; for a
// user other than root, root is the only one.
func enter(args []string) error {
	users := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	root := os.Getuid() == 0
	if root {
		users[0].Size, groups[0].Size = 1<<16, 1<<16
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = inside
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: users, GidMappings: groups, GidMappingsEnableSetgroups: root,
		Pdeathsig: syscall.SIGKILL,
	}
	return cmd.Run()
}

// become sets up the namespaces and executes the command.
func become(qemu, sysroot string, command []string) error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("binfmt_misc", binfmt, "binfmt_misc", 0, ""); err != nil {
		return fmt.Errorf("mounting binfmt_misc in a user namespace: %w (that takes Linux 6.7 or later)", err)
	}
	qemu, err := filepath.Abs(qemu)
	if err != nil {
		return err
	}
	if err := os.WriteFile(binfmt+"/register", fmt.Appendf(nil, arm64, qemu), 0); err != nil {
		return fmt.Errorf("naming %s as the interpreter of arm64: %w", qemu, err)
	}
	libraries, err := filepath.EvalSymlinks("/lib")
	if err != nil {
		return err
	}
	if err := unix.Mount("overlay", libraries, "overlay", 0, "lowerdir="+sysroot+"/lib:"+libraries); err != nil {
		return fmt.Errorf("laying %s/lib over %s: %w", sysroot, libraries, err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("executing %s: %w", path, unix.Exec(path, command, append(os.Environ(), "RATION_TEST_EMULATED=qemu")))
}
