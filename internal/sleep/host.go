package sleep

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/machine"
)

// What is put aside becomes memory of the process. A machine that swaps is worse than a full GPU, so that must fit, with
// a part to spare.

// spareFraction is the part of the host's memory that is left for others.
const spareFraction = 20

// memoryFile is where the kernel says how much memory the host has.
var memoryFile = "/proc/meminfo"

// hostRoom returns how much memory a process can take on the host, and which bound that is. coming is what other jobs are
// about to put there.
func hostRoom(pid int, coming uint64) (bytes uint64, bound string, err error) {
	info, err := meminfo(memoryFile)
	if err != nil {
		return 0, "", fmt.Errorf("reading the host's memory: %w", err)
	}
	bytes, bound = info["MemAvailable"], "the host's available memory"
	bytes -= min(bytes, info["MemTotal"]/spareFraction)
	bytes -= min(bytes, coming) // the part that is there already counts twice
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

// cgroupFolder is where version 2 of cgroups is mounted, and procFolder where processes are.
var cgroupFolder, procFolder = "/sys/fs/cgroup", "/proc"

// cgroupRoom returns how much the cgroups of a process have left, by folder, where they have a limit. A limit that cannot
// be read does not count: the kernel enforces it, and the process that is put to sleep is then the one that it ends. (With
// version 1 of cgroups, none is read.)
func cgroupRoom(pid int) map[string]uint64 {
	out := map[string]uint64{}
	text, err := os.ReadFile(filepath.Join(procFolder, strconv.Itoa(pid), "cgroup"))
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

// EnvMemory bounds how much host memory the sleeping jobs of a user may take together, as 100g or 50%. With a policy,
// sleep_memory of the operator's file comes first.
const EnvMemory = "RATION_SLEEP_MEMORY"

// defaultMemory is the bound without a setting, in per cent of the host's memory.
const defaultMemory = 50

// policyFile is the policy in force, which every user can read.
var policyFile = job.InForceFile

const policySource = "sleep_memory of the policy"

// Bound returns how much host memory sleeping jobs may take together, and where that was set.
func Bound() (bytes uint64, source string, err error) {
	info, err := meminfo(memoryFile)
	if err != nil {
		return 0, "", fmt.Errorf("reading the host's memory: %w", err)
	}
	total := info["MemTotal"]
	var policy struct {
		Memory *string `toml:"sleep_memory"`
	}
	unset := EnvMemory
	text, err := os.ReadFile(policyFile)
	switch {
	case err == nil:
		unset = policySource // the process that puts a user's job to sleep has no variables of the user
		if err := toml.Unmarshal(text, &policy); err != nil {
			return 0, "", fmt.Errorf("reading %s: %w", policyFile, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return 0, "", err
	}
	value, source := os.Getenv(EnvMemory), EnvMemory
	if policy.Memory != nil {
		value, source = *policy.Memory, policySource
	}
	if value == "" {
		return total / 100 * defaultMemory, fmt.Sprintf("half of the host's memory, without %s", unset), nil
	}
	bytes, err = ParseBound(value, total)
	if err != nil {
		return 0, "", fmt.Errorf("%s %q: %w", source, value, err)
	}
	return bytes, source, nil
}

// ParseBound reads a bound: a size, or per cent of the host's memory.
func ParseBound(text string, total uint64) (uint64, error) {
	if number, is := strings.CutSuffix(text, "%"); is {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > 100 {
			return 0, errors.New("not a size, nor 0% to 100%")
		}
		return total / 100 * n, nil
	}
	size, err := limit.ParseSize(text)
	return uint64(size), err
}

// aside returns how many bytes of host memory the other jobs that this process can read have there, and how many they are
// putting there now.
var aside = func(except string) (bytes, coming uint64, err error) {
	m, err := node.Jobs()
	if err != nil {
		return 0, 0, err
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.Path == except || j.Sleep == "" {
			continue
		}
		bytes += min(j.Aside(), ^bytes)
		if j.Sleep == machine.FallingAsleep {
			for n := range j.Devices {
				coming += min(j.Devices[n].Used, ^coming)
			}
		}
	}
	return bytes, coming, nil
}

// checkMemory returns an error if the host's memory cannot take what the processes of a job hold. Two jobs that fall
// asleep at once count for each other: both are falling when this is called for the second time. buffers are needed
// while memory moves.
func checkMemory(path string, pids []int, bytes, buffers uint64) error {
	others, coming, err := aside(path)
	if err != nil {
		return fmt.Errorf("counting what sleeping jobs have in the host's memory: %w", err)
	}
	if err := checkBound(bytes, others+min(coming, ^others)); err != nil {
		return err
	}
	return checkHost(pids, bytes+buffers, coming)
}

// checkBound returns an error if the sleeping jobs together would take more host memory than they may. others is what
// other jobs have there.
func checkBound(bytes, others uint64) error {
	most, source, err := Bound()
	if err != nil {
		return err
	}
	if left := most - min(most, others); bytes > left {
		have := ""
		if others > 0 {
			have = fmt.Sprintf(", and others have %s (wake or end one of them)", humanfmt.Bytes(others))
		}
		return fmt.Errorf("%w: %s would go to the host's memory, where sleeping jobs may have %s (%s)%s", ErrCannotSleep, humanfmt.Bytes(bytes), humanfmt.Bytes(most), source, have)
	}
	return nil
}

// checkHost returns an error if the host has no room for what processes hold. Processes of one cgroup share its room.
func checkHost(pids []int, bytes, coming uint64) error {
	for _, pid := range pids {
		room, bound, err := hostRoom(pid, coming)
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
