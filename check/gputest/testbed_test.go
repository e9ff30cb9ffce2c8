package gputest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/bench"
	"ration/check/benchpage"
	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
)

// testbed is the machine under test.
type testbed struct {
	bundle string   // the folder of the programs
	nvml   string   // path of the stand-in's NVML library; empty is the driver's own
	vars   []string // variables for programs, besides those of this process

	ready   bool // the driver is open, and has the device
	device  int  // NVML's number of the device under test
	driver  *gpu.Driver
	scratch string        // folder of jobs, caches and compiled programs
	jobs    int           // made so far
	trials  int           // made so far
	alone   map[work]pace // how fast work goes alone
}

// standIn prepares a testbed with the stand-in driver. It is nil in the program of the
// bundle.
var standIn func(*testbed) error

// opened is the testbed of this run, after the first check has opened it.
var opened *testbed

// openTestbed returns the testbed of this run. The first call opens the driver, and makes
// a folder that only this run uses.
func openTestbed(t *testing.T) *testbed {
	t.Helper()
	b, err := openOnce()
	if standIn != nil && errors.Is(err, errNoBundle) {
		testenv.Made(t, err)
	}
	expect.OK(t, err)
	return b
}

var errNoBundle = errors.New("the programs of the bundle are not there")

var openOnce = sync.OnceValues(func() (*testbed, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the folder of this program: %w", err)
	}
	b := &testbed{bundle: cmp.Or(*bundleFlag, filepath.Dir(self))}
	if b.scratch, err = os.MkdirTemp("", "ration-gpu-test-"); err != nil {
		return nil, fmt.Errorf("making a folder for the test: %w", err)
	}
	opened = b // so that the folder is removed in any case
	for _, name := range caches {
		if err := os.MkdirAll(b.cache(name), 0o700); err != nil {
			return nil, fmt.Errorf("making a folder for the test: %w", err)
		}
	}
	if standIn != nil {
		if err := standIn(b); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(b.file("ration")); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoBundle, err)
	}
	if b.driver, err = gpu.Open(b.nvml); err != nil {
		return nil, err
	}
	if b.device, err = chooseDevice(b.driver.Devices, os.Getenv("CUDA_VISIBLE_DEVICES")); err != nil {
		return nil, err
	}
	b.ready = true
	// For the commands that are started here and for the regions that are read here.
	return b, os.Setenv(job.EnvFolder, filepath.Join(b.scratch, "jobs"))
})

// close kills all processes of the run that are left, and removes all its files.
func (b *testbed) close() {
	if b == nil {
		return
	}
	killMarked(b.scratch + "/")
	if b.driver != nil {
		b.driver.Close()
	}
	_ = os.RemoveAll(b.scratch) // in TMPDIR, where leftovers do no harm
}

// file returns the path of a file of the bundle.
func (b *testbed) file(parts ...string) string {
	return filepath.Join(append([]string{b.bundle}, parts...)...)
}

func (b *testbed) onStandIn() bool { return b.nvml != "" }

// facts describes the machine.
func (b *testbed) facts() []benchpage.Fact {
	d := b.driver.Devices[b.device]
	facts := []benchpage.Fact{{Name: "GPU", Text: fmt.Sprintf("%s, %s, device %d, driver %s, CUDA %d.%d", d.Name, humanfmt.Bytes(uint64(d.Total)), b.device,
		b.driver.Version, b.driver.CUDA/1000, b.driver.CUDA%1000/10)}}
	if out, err := exec.Command(b.file("ration"), "version").Output(); err == nil {
		version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		facts = append(facts, benchpage.Fact{Name: "ration", Text: version})
	}
	if m, err := bench.ThisHost(); err == nil {
		facts = append(facts, m.Facts()...)
	}
	for _, module := range frameworks {
		if version := moduleVersions()[module]; version != "" {
			facts = append(facts, benchpage.Fact{Name: module, Text: version})
		}
	}
	return facts
}

// stray matches the variables that would change what the programs of a test do:
// limits, and selections of a device or an allocator.
var stray = regexp.MustCompile(`^(RATION_|CUDA_DEVICE_|GPU_CORE_UTILIZATION_POLICY=|CUDA_VISIBLE_DEVICES=|(LIBCUDA_)?LOG_LEVEL=|LD_PRELOAD=|PYTORCH_[A-Z_]*ALLOC_CONF=|PYTORCH_NO_CUDA_MEMORY_CACHING=|NCCL_|XLA_)`)

// caches are the variables that name the folders of compiled code. They point to the
// folder of this run, so that nothing stays.
var caches = []string{"CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME"}

func (b *testbed) cache(name string) string { return filepath.Join(b.scratch, "cache", name) }

// environ returns the environment of a program. It shows the program the tested device and
// no other, by its number in NVML's order: for a UUID the library would have to start
// NVML, and the measures would include that.
func (b *testbed) environ(more ...string) (env []string) {
	for _, entry := range os.Environ() {
		if !stray.MatchString(entry) {
			env = append(env, entry)
		}
	}
	for _, name := range caches {
		env = append(env, name+"="+b.cache(name))
	}
	env = append(env, job.EnvFolder+"="+os.Getenv(job.EnvFolder), "PYTHONDONTWRITEBYTECODE=1",
		"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES="+strconv.Itoa(b.device))
	return slices.Concat(env, b.vars, more)
}

// chooseDevice returns NVML's number of the device to test: the first in
// CUDA_VISIBLE_DEVICES, or the first of all if that is empty.
func chooseDevice(devices []gpu.Device, visible string) (int, error) {
	first, _, _ := strings.Cut(visible, ",")
	first = strings.TrimSpace(first)
	for _, d := range devices {
		// CUDA accepts the beginning of a UUID, too.
		if first != "" && first != strconv.Itoa(d.Index) && !(strings.HasPrefix(first, "GPU-") && strings.HasPrefix(d.UUID, first)) {
			continue
		}
		if d.MIG {
			return 0, fmt.Errorf("choosing device %d: it is in MIG mode, whose parts cannot be tested (CUDA_VISIBLE_DEVICES chooses another)", d.Index)
		}
		return d.Index, nil
	}
	return 0, fmt.Errorf("choosing device %q of CUDA_VISIBLE_DEVICES: the driver has no such GPU (nvidia-smi -L lists them)", first)
}

// pinCPU returns a CPU to pin programs to: not the first if there is another, since the
// first often serves interrupts.
func pinCPU() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		for cpu := 1; cpu < len(set)*strconv.IntSize; cpu++ {
			if set.IsSet(cpu) {
				return cpu
			}
		}
	}
	return 0
}
