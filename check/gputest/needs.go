package gputest

import (
	"os"
	"os/exec"
	"slices"
	"strings"

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

// missing returns what a check needs and this machine does not have, or nothing.
func (m *Machine) missing(needs []string, room uint64) string {
	var absent []string
	for _, need := range needs {
		if !m.has(need) {
			absent = append(absent, need)
		}
	}
	if len(absent) > 0 {
		return "needs " + strings.Join(absent, " and ") + ", which is not here"
	}
	if free, err := m.driver.Free(m.device); room > 0 && (err != nil || free < room) {
		return "needs " + humanfmt.Bytes(room) + " of the device, " + humanfmt.Bytes(free) + " is free"
	}
	return ""
}

func (m *Machine) has(need string) bool {
	switch {
	case need == root:
		return os.Geteuid() == 0
	case need == real:
		return m.NVML == ""
	case need == nvcc && m.NVML != "":
		return false // there is no CUDA runtime that works with fakegpu
	case need == openMPI:
		// Other implementations have other options and variables.
		out, err := exec.Command("mpirun", "--version").Output()
		return err == nil && strings.Contains(string(out), "Open MPI")
	case slices.Contains(frameworks, need):
		return m.NVML == "" && m.python(need) != ""
	}
	_, err := exec.LookPath(need)
	return err == nil
}
