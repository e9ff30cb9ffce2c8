package sleep

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
)

// fakeHost makes a host of 100 GiB with so many available. A process 7 is in the cgroup a/b.
func fakeHost(t *testing.T, available string) (folder string) {
	folder = t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(folder, name)
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("meminfo", "MemTotal:       104857600 kB\nMemAvailable:   "+available+" kB\n")
	write("proc/7/cgroup", "0::/a/b\n")
	write("cgroup/memory.current", "0\n") // the root has no limit
	write("cgroup/a/memory.max", "max\n")
	write("cgroup/a/memory.current", "7\n")
	write("cgroup/a/b/memory.max", "max\n")
	write("cgroup/a/b/memory.current", "7\n")
	oldMemory, oldCgroup, oldProc, oldPolicy, oldAside := memoryFile, cgroupFolder, procFolder, policyFile, aside
	t.Cleanup(func() {
		memoryFile, cgroupFolder, procFolder, policyFile, aside = oldMemory, oldCgroup, oldProc, oldPolicy, oldAside
	})
	memoryFile, cgroupFolder, procFolder, policyFile = filepath.Join(folder, "meminfo"), filepath.Join(folder, "cgroup"), filepath.Join(folder, "proc"), filepath.Join(folder, "policy")
	aside = func(string) (uint64, uint64, error) { return 0, 0, nil }
	t.Setenv(EnvMemory, "")
	return folder
}

const hostGiB = 1 << 30

// What is put aside must fit in the available memory, less a twentieth of all, and in each cgroup above the process.
func TestCheckHost(t *testing.T) {
	folder := fakeHost(t, "52428800") // 50 GiB
	coming := uint64(0)
	fits := func(bytes uint64, why string) {
		t.Helper()
		err := checkHost([]int{7}, bytes, coming)
		if why == "" {
			expect.OK(t, err)
			return
		}
		expect.True(t, errors.Is(err, ErrCannotSleep) && strings.Contains(err.Error(), why), err)
	}
	fits(45*hostGiB, "")
	fits(45*hostGiB+1, "available memory has room for 45 GiB")
	coming = 30 * hostGiB // of a job that falls asleep at the same time
	fits(15*hostGiB, "")
	fits(15*hostGiB+1, "available memory has room for 15 GiB")
	coming = 0
	expect.OK(t, os.WriteFile(filepath.Join(folder, "cgroup/a/memory.max"), []byte("10737418240\n"), 0o600))
	expect.OK(t, os.WriteFile(filepath.Join(folder, "cgroup/a/memory.current"), []byte("2147483648\n"), 0o600))
	fits(8*hostGiB, "")
	fits(8*hostGiB+1, "the memory limit of "+filepath.Join(folder, "cgroup/a")+" has room for 8 GiB")
	expect.OK(t, os.WriteFile(filepath.Join(folder, "cgroup/a/b/memory.max"), []byte("5\n"), 0o600)) // less than is used
	fits(1, "cgroup/a/b has room for 0")
	expect.OK(t, os.WriteFile(memoryFile, []byte("MemTotal: 1 kB\n"), 0o600))
	expect.True(t, checkHost([]int{7}, 0, 0) != nil, "a host of which it is not known what is available has room")
}

// The sleeping jobs together take no more host memory than the setting says.
func TestCheckBound(t *testing.T) {
	fakeHost(t, "104857600")
	others, coming := uint64(0), uint64(0)
	aside = func(except string) (uint64, uint64, error) {
		expect.Equal(t, except, "/j/region")
		return others, coming, nil
	}
	fits := func(bytes uint64, why string) {
		t.Helper()
		err := checkMemory("/j/region", []int{7}, bytes, 0)
		if why == "" {
			expect.OK(t, err)
			return
		}
		expect.True(t, errors.Is(err, ErrCannotSleep) && strings.Contains(err.Error(), why), err)
	}
	fits(49*hostGiB, "")
	fits(51*hostGiB, "half of the host's memory")
	err := checkMemory("/j/region", nil, 51*hostGiB, 0)
	expect.True(t, err != nil && !strings.Contains(err.Error(), "one of them"), "no other job sleeps:", err)
	expect.OK(t, os.WriteFile(policyFile, []byte("[everybody]\nmemory = \"8g\"\n"), 0o600))
	fits(51*hostGiB, "half of the host's memory, without sleep_memory of the policy")
	expect.OK(t, os.Remove(policyFile))
	others = 40 * hostGiB
	fits(9*hostGiB, "")
	fits(11*hostGiB, "others have 40 GiB")
	others, coming = 10*hostGiB, 30*hostGiB
	fits(9*hostGiB, "")
	fits(11*hostGiB, "others have 40 GiB")
	others, coming = 60*hostGiB, 0
	fits(1, "others have 60 GiB")
	t.Setenv(EnvMemory, "70g")
	fits(10*hostGiB, "")
	fits(10*hostGiB+1, EnvMemory)
	expect.OK(t, os.WriteFile(policyFile, []byte("# first\nsleep_memory = \"65%\"\n[everybody]\nmemory = \"8g\"\n"), 0o600))
	fits(4*hostGiB, "")
	fits(6*hostGiB, "sleep_memory of the policy")
	for _, text := range []string{"101%", "-1%", "x", "5%%"} {
		expect.OK(t, os.WriteFile(policyFile, []byte("sleep_memory = \""+text+"\"\n"), 0o600))
		expect.True(t, checkMemory("/j/region", nil, 1, 0) != nil, "a bound of", text, "lets a job sleep")
	}
	expect.OK(t, os.WriteFile(policyFile, []byte("sleep_memory = "), 0o600))
	expect.True(t, checkMemory("/j/region", nil, 1, 0) != nil, "a broken policy lets a job sleep")
	expect.OK(t, os.Remove(policyFile))
	aside = func(string) (uint64, uint64, error) { return 0, 0, os.ErrPermission }
	expect.True(t, checkMemory("/j/region", nil, 1, 0) != nil, "jobs that cannot be counted let a job sleep")
}
