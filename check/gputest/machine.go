package gputest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"ration/check/bench"
	"ration/internal/gpu"
	"ration/internal/job"
)

// Bundle is the folder that holds everything a run needs:
//
//	ration      the command, with the library inside
//	bin/        C programs that call the driver
//	src/        CUDA programs, compiled if there is a compiler
//	python/     programs of the frameworks
//	coverage.md the calls that ration knows
type Bundle string

func (b Bundle) file(parts ...string) string {
	return filepath.Join(append([]string{string(b)}, parts...)...)
}

// Machine is the machine under test.
type Machine struct {
	Bundle Bundle
	NVML   string   // path of the NVML library; empty is the driver's own
	Env    []string // variables for programs, besides those of this process
	Python string   // empty: the first python3 in PATH
	Device int      // NVML's number of the device to test, or AnyDevice

	device  int // NVML's number of the device under test
	driver  *gpu.Driver
	scratch string                     // folder of jobs, caches and compiled programs
	jobs    int                        // made so far
	trials  int                        // made so far
	python  func(module string) string // returns the version of a module, or nothing
	alone   map[work]pace              // how fast work goes alone
}

// Open opens the driver, and makes a folder for jobs that only this run uses.
func (m *Machine) Open() (err error) {
	if m.driver, err = gpu.Open(m.NVML); err != nil {
		return err
	}
	if m.device, err = chooseDevice(m.driver.Devices, m.Device, os.Getenv("CUDA_VISIBLE_DEVICES")); err != nil {
		m.driver.Close()
		return err
	}
	if m.scratch, err = os.MkdirTemp("", "ration-gpu-test-"); err != nil {
		m.driver.Close()
		return fmt.Errorf("making a folder for the test: %w", err)
	}
	for _, name := range caches {
		if err := os.MkdirAll(m.cache(name), 0o700); err != nil {
			m.Close()
			return fmt.Errorf("making a folder for the test: %w", err)
		}
	}
	if m.Python == "" {
		m.Python = "python3"
	}
	m.python = m.modules()
	// For the commands that are started here and for the regions that are read here.
	return os.Setenv(job.EnvFolder, filepath.Join(m.scratch, "jobs"))
}

// Close kills all processes of the run that are left, and removes all its files.
func (m *Machine) Close() {
	killMarked(m.scratch + "/")
	m.driver.Close()
	_ = os.RemoveAll(m.scratch) // in TMPDIR, where leftovers do no harm
}

// About describes the machine in a report.
type About struct {
	bench.Machine
	GPU        string            `json:"gpu"`
	Device     int               `json:"device"` // NVML's number
	Memory     uint64            `json:"gpu_memory"`
	Driver     string            `json:"driver"`
	CUDA       string            `json:"cuda"`
	Ration     string            `json:"ration"`
	Frameworks map[string]string `json:"frameworks"`
}

func (m *Machine) describe() (a About, err error) {
	if a.Machine, err = bench.ThisMachine(); err != nil {
		return a, err
	}
	d := m.driver.Devices[m.device]
	a.GPU, a.Device, a.Memory, a.Driver = d.Name, m.device, uint64(d.Total), m.driver.Version
	a.CUDA = fmt.Sprintf("%d.%d", m.driver.CUDA/1000, m.driver.CUDA%1000/10)
	if out, err := exec.Command(m.Bundle.file("ration"), "version").Output(); err == nil {
		a.Ration, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	}
	a.Frameworks = map[string]string{}
	for _, module := range frameworks {
		if version := m.python(module); version != "" {
			a.Frameworks[module] = version
		}
	}
	return a, nil
}

// stray matches the variables that would change what the programs of a test do:
// limits, and selections of a device or an allocator.
var stray = regexp.MustCompile(`^(RATION_|CUDA_DEVICE_|GPU_CORE_UTILIZATION_POLICY=|CUDA_VISIBLE_DEVICES=|(LIBCUDA_)?LOG_LEVEL=|LD_PRELOAD=|PYTORCH_[A-Z_]*ALLOC_CONF=|PYTORCH_NO_CUDA_MEMORY_CACHING=|NCCL_|XLA_)`)

// caches are the variables that name the folders of compiled code. They point to the
// folder of this run, so that nothing stays.
var caches = []string{"CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME"}

func (m *Machine) cache(name string) string { return filepath.Join(m.scratch, "cache", name) }

// environ returns the environment of a program.
func (m *Machine) environ(more ...string) (env []string) {
	for _, entry := range os.Environ() {
		if !stray.MatchString(entry) {
			env = append(env, entry)
		}
	}
	for _, name := range caches {
		env = append(env, name+"="+m.cache(name))
	}
	env = append(env, job.EnvFolder+"="+os.Getenv(job.EnvFolder), "PYTHONDONTWRITEBYTECODE=1")
	return slices.Concat(env, m.visible(), m.Env, more)
}

// frameworks are the Python modules that checks are about.
var frameworks = []string{"torch", "triton", "jax", "cupy"}

// modules returns a function that returns the version of a framework. It asks Python
// once, for the metadata: importing the frameworks would take seconds.
func (m *Machine) modules() func(string) string {
	versions := sync.OnceValue(func() map[string]string {
		const script = `
import sys
from importlib import metadata, util
for module in sys.argv[1:]:
    if util.find_spec(module):
        names = metadata.packages_distributions().get(module, [module])
        print(module, metadata.version(names[0]))
`
		found := map[string]string{}
		out, err := exec.Command(m.Python, append([]string{"-c", script}, frameworks...)...).Output()
		if err != nil {
			return found // no Python: no frameworks
		}
		for line := range strings.Lines(string(out)) {
			module, version, _ := strings.Cut(strings.TrimSpace(line), " ")
			found[module] = version
		}
		return found
	})
	return func(module string) string { return versions()[module] }
}
