package plugin

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/yaml"

	"ration/check/expect"
)

// memoryLimit returns the limit of the plugin's memory in the chart.
func memoryLimit(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("../chart/values.yaml")
	expect.OK(t, err)
	var values struct {
		Resources struct {
			Limits struct{ Memory resource.Quantity }
		}
	}
	expect.OK(t, yaml.Unmarshal(text, &values))
	return values.Resources.Limits.Memory.Value()
}

// memoryGroup is a cgroup with a limit on memory.
type memoryGroup struct {
	folder string
	v2     bool
}

// newMemoryGroup makes one, or skips the test where that is impossible.
func newMemoryGroup(t *testing.T, limit int64) memoryGroup {
	t.Helper()
	g := memoryGroup{folder: "/sys/fs/cgroup/memory"}
	file := "memory.limit_in_bytes"
	if _, err := os.Stat(g.folder); errors.Is(err, os.ErrNotExist) {
		g.folder, g.v2, file = "/sys/fs/cgroup", true, "memory.max"
	}
	g.folder = filepath.Join(g.folder, fmt.Sprintf("ration-test-%d", os.Getpid()))
	if err := os.Mkdir(g.folder, 0o755); err != nil {
		t.Skipf("making a cgroup: %v", err)
	}
	t.Cleanup(func() { expect.OK(t, os.Remove(g.folder)) })
	if err := os.WriteFile(filepath.Join(g.folder, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		t.Skipf("limiting memory in a cgroup: %v (does its parent hand out the memory controller?)", err)
	}
	return g
}

// field returns a number from a file with one in each line, after its name.
func (g memoryGroup) field(t *testing.T, file, name string) (n int64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.folder, file))
	expect.OK(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			expect.OK(t, err)
			return n
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}

// kept returns the bytes that the kernel cannot take back: of processes, and of files in memory, such as regions.
func (g memoryGroup) kept(t *testing.T) int64 {
	t.Helper()
	if g.v2 {
		return g.field(t, "memory.stat", "anon") + g.field(t, "memory.stat", "shmem")
	}
	return g.field(t, "memory.stat", "total_rss") + g.field(t, "memory.stat", "total_shmem")
}

// kills returns how many processes were killed for memory.
func (g memoryGroup) kills(t *testing.T) int64 {
	t.Helper()
	if g.v2 {
		return g.field(t, "memory.events", "oom_kill")
	}
	return g.field(t, "memory.oom_control", "oom_kill")
}

const envMemoryGroup = "RATION_TEST_MEMORY_GROUP"

// A plugin prepares the claims of a node full of pods within the memory that the chart gives it, with the regions of its
// jobs, which the kernel charges to it. The process here is the kubelet and the API server too.
func TestMemoryOfAFullNode(t *testing.T) {
	const pods = 110
	if folder := os.Getenv(envMemoryGroup); folder != "" {
		prepareFullNode(t, memoryGroup{folder, !strings.HasPrefix(folder, "/sys/fs/cgroup/memory/")}, pods)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can make a cgroup")
	}
	limit := memoryLimit(t)
	g := newMemoryGroup(t, limit)
	// Whatever it leaves if it is killed is gone with its mount namespace.
	const script = `mount -t tmpfs test /dev/shm && echo $$ >"$RATION_TEST_MEMORY_GROUP/cgroup.procs" && exec "$0" -test.run='^TestMemoryOfAFullNode$' -test.v`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, os.Args[0])
	cmd.Env = append(os.Environ(), envMemoryGroup+"="+g.folder, "TMPDIR=/dev/shm")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	expect.OK(t, err)
	expect.Equal(t, g.kills(t), 0, "processes were killed for memory")
}

func prepareFullNode(t *testing.T, g memoryGroup, pods int) {
	c := newCluster(t)
	c.inMemory()
	var claims []*resourceapi.ResourceClaim
	for i := range pods {
		claims = append(claims, newClaim(c, i, "1Gi"))
	}
	c.add(claims...)
	c.start()
	before := g.kept(t)
	c.burst(t, claims)
	expect.Equal(t, c.records(), pods)
	t.Logf("%d MiB before the first claim, %d MiB with %d", before>>20, g.kept(t)>>20, pods)
}
