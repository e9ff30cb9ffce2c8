package gputest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"ration/internal/humanfmt"
)

// What a check may need besides a driver.
const (
	root    = "root"
	real    = "real GPU"
	nvcc    = "nvcc"
	openMPI = "mpirun of Open MPI"
	unshare = "unshare"
	torch   = "torch"
	triton  = "triton"
	jax     = "jax"
	cupy    = "cupy"
)

// frameworks are the Python modules that checks are about.
var frameworks = []string{torch, triton, jax, cupy}

// need skips the check if this machine does not have what it needs.
func (t *trial) need(room uint64, needs []string) {
	t.Helper()
	var absent []string
	for _, need := range needs {
		if !t.has(need) {
			absent = append(absent, need)
		}
	}
	if len(absent) > 0 {
		t.Skipf("needs %s, which is not here", strings.Join(absent, " and "))
	}
	if free, err := t.driver.Free(t.device); room > 0 && (err != nil || free < room) {
		t.Skipf("needs %s of the device, %s is free", humanfmt.Bytes(room), humanfmt.Bytes(free))
	}
}

func (b *testbed) has(need string) bool {
	switch {
	case need == root:
		return os.Geteuid() == 0
	case need == real:
		return !b.onStandIn()
	case need == nvcc && b.onStandIn():
		return false // there is no CUDA runtime that works with fakegpu
	case need == openMPI:
		// Other implementations have other options and variables.
		out, err := exec.Command("mpirun", "--version").Output()
		return err == nil && strings.Contains(string(out), "Open MPI")
	case slices.Contains(frameworks, need):
		return !b.onStandIn() && moduleVersions()[need] != ""
	}
	_, err := exec.LookPath(need)
	return err == nil
}

const python = "python3" // the first in PATH

// moduleVersions returns the versions of the frameworks that are here. It asks Python once,
// for the metadata: importing the frameworks would take seconds.
var moduleVersions = sync.OnceValue(func() map[string]string {
	const script = `
import sys
from importlib import metadata, util
for module in sys.argv[1:]:
    if util.find_spec(module):
        names = metadata.packages_distributions().get(module, [module])
        print(module, metadata.version(names[0]))
`
	found := map[string]string{}
	out, err := exec.Command(python, append([]string{"-c", script}, frameworks...)...).Output()
	if err != nil {
		return found // no Python: no frameworks
	}
	for line := range strings.Lines(string(out)) {
		module, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[module] = version
	}
	return found
})
