package bench

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

// Host describes the machine of a run.
type Host struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	Arch       string `json:"arch"`
	FileSystem string `json:"file_system"`  // of the regions
	Load       string `json:"load_average"` // when the run began: 1, 5 and 15 minutes
}

// ThisHost describes the machine that this runs on.
func ThisHost() (Host, error) {
	m := Host{CPU: cpu(), Cores: runtime.NumCPU(), Go: runtime.Version(), Arch: runtime.GOARCH}
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
		m.FileSystem = job.FileSystem(filepath.Dir(path))
		return nil
	})
	return m, err
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
