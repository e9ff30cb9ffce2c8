package sleep

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
)

// What is put aside becomes memory of the process. A machine that swaps is worse than a full GPU, so that must fit, with
// a part to spare.

// spareFraction is the part of the host's memory that is left for others.
const spareFraction = 20

// hostRoom returns how much memory a process can take on the host, and which bound that is.
func hostRoom(pid int) (bytes uint64, bound string, err error) {
	info, err := meminfo("/proc/meminfo")
	if err != nil {
		return 0, "", fmt.Errorf("reading the host's memory: %w", err)
	}
	bytes, bound = info["MemAvailable"], "the host's available memory"
	bytes -= min(bytes, info["MemTotal"]/spareFraction)
	for folder, left := range cgroupRoom(pid) {
		if left < bytes {
			bytes, bound = left, "the memory limit of "+folder
		}
	}
	return bytes, bound, nil
}

// meminfo reads a file in the form of /proc/meminfo, in bytes.
func meminfo(path string) (map[string]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]uint64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		if words := strings.Fields(rest); len(words) == 2 && words[1] == "kB" {
			if n, err := strconv.ParseUint(words[0], 10, 54); err == nil {
				out[name] = n << 10
			}
		}
	}
	if out["MemAvailable"] == 0 {
		return nil, fmt.Errorf("%s has no MemAvailable", path)
	}
	return out, nil
}

// cgroupFolder is where version 2 of cgroups is mounted.
var cgroupFolder = "/sys/fs/cgroup"

// cgroupRoom returns how much the cgroups of a process have left, by folder, where they have a limit. A limit that cannot
// be read does not count: the kernel enforces it, and the process that is put to sleep is then the one that it ends. (With
// version 1 of cgroups, none is read.)
func cgroupRoom(pid int) map[string]uint64 {
	out := map[string]uint64{}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(text)) {
		path, found := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !found {
			continue
		}
		for ; ; path = filepath.Dir(path) {
			folder := filepath.Join(cgroupFolder, filepath.Join("/", path))
			if most, ok := readBytes(filepath.Join(folder, "memory.max")); ok {
				if now, ok := readBytes(filepath.Join(folder, "memory.current")); ok {
					out[folder] = most - min(most, now)
				}
			}
			if path == "." || path == "/" || path == "" {
				break
			}
		}
	}
	return out
}

func readBytes(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
	return n, err == nil
}

// checkHost returns an error if the host has no room for what processes hold. Processes of one cgroup share its room.
func checkHost(pids []int, bytes uint64) error {
	for _, pid := range pids {
		room, bound, err := hostRoom(pid)
		if err != nil {
			return err
		}
		if bytes > room {
			return fmt.Errorf("%w: %s would go to the host's memory, and %s has room for %s (end programs there)", ErrCannotSleep,
				humanfmt.Bytes(bytes), bound, humanfmt.Bytes(room))
		}
	}
	return nil
}
