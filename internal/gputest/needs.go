package gputest

import (
	"os"
	"os/exec"
	"slices"
	"strings"

	"ration/internal/humanfmt"
)

// What checks may need beside a driver.
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

// lacks says what a check needs and this machine has not.
func (m *Machine) lacks(needs []string, room uint64) string {
	var missing []string
	for _, need := range needs {
		if !m.has(need) {
			missing = append(missing, need)
		}
	}
	if len(missing) > 0 {
		return "needs " + strings.Join(missing, " and ") + ", which is not here"
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
		return false // what it builds would find no CUDA runtime to go with a stand-in
	case need == openMPI:
		// Others have other options, and other variables for a rank's number.
		out, err := exec.Command("mpirun", "--version").Output()
		return err == nil && strings.Contains(string(out), "Open MPI")
	case slices.Contains(frameworks, need):
		return m.NVML == "" && m.python(need) != ""
	}
	_, err := exec.LookPath(need)
	return err == nil
}
