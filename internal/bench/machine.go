package bench

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine of a run.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	Arch       string `json:"arch"`
	FileSystem string `json:"file_system"`  // of the regions
	Load       string `json:"load_average"` // when the run began: 1, 5 and 15 minutes
}

// ThisMachine describes the machine this runs on.
func ThisMachine() (Machine, error) {
	m := Machine{CPU: cpu(), Cores: runtime.NumCPU(), Go: runtime.Version(), Arch: runtime.GOARCH}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("asking for the kernel's name: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		if field := strings.Fields(string(b)); len(field) >= 3 {
			m.Load = strings.Join(field[:3], " ")
		}
	}
	err := inRegion(func(path string) error {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
			return fmt.Errorf("asking for the file system of %s: %w", path, err)
		}
		m.FileSystem = fileSystem(int64(st.Type))
		return nil
	})
	return m, err
}

func fileSystem(magic int64) string {
	switch magic {
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("file system %#x", magic)
}

func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return runtime.GOARCH
}
