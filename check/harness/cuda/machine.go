// Package cuda runs ordinary CUDA programs on a machine without a GPU. Each program is linked with
// the driver, does not know ration, has libration.so preloaded, and gets fakegpu as its driver. So
// it behaves like a user's program.
package cuda

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"ration/internal/embedded"
	"ration/internal/launch"
	"ration/internal/limit"
)

// StandIn is a stand-in machine with one device, and a job on it.
type StandIn struct {
	GPU     string // fakegpu's name for the device: h200, or h100:80g
	Region  string // path of the job's region; the device's state is in the same folder
	Limit   uint64 // memory limit of the job, in bytes
	Context uint64 // device memory that the context of each program takes, in bytes
	Real    bool   // the machine's own driver is used; GPU and Context mean nothing

	preload string // path of the unpacked libration.so
	driver  string // folder of the unpacked fakegpu
	program string // path of the unpacked CUDA program
	started int    // number of programs started so far
}

// bundles are the embedded files that a machine needs.
var bundles = [...]embedded.Bundle{embedded.Ration, embedded.FakeGPU, embedded.Workload}

// Unpack unpacks the files that the machine needs. The error matches
// embedded.ErrNotBuilt if this ration was built without them.
func (m *StandIn) Unpack() error {
	if err := launch.CheckGlibc(); err != nil {
		return err
	}
	var folders [len(bundles)]string
	for i, b := range bundles {
		var err error
		if folders[i], err = b.Unpack(); err != nil {
			return err
		}
	}
	m.preload, m.driver, m.program = filepath.Join(folders[0], "libration.so"), folders[1], filepath.Join(folders[2], "workload")
	return nil
}

// Built returns nil if this ration was built with the files that a machine needs.
func Built() error {
	for _, b := range bundles {
		if err := b.Built(); err != nil {
			return err
		}
	}
	return nil
}

// ownVariables matches variables that a StandIn sets itself, and variables that would change the
// behaviour of its programs.
var ownVariables = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(RATION_|CUDA_|FAKEGPU|LIBCUDA_|LOG_LEVEL=|NVIDIA_|LD_PRELOAD=|LD_LIBRARY_PATH=)`)
})

// place selects where a program runs.
type place int

const (
	outside place = iota // with the driver alone, to read the device: its context uses no memory
	native               // with the driver alone, otherwise as in the job
	inside               // in the job, with the library preloaded
)

// environ returns the environment of a program.
func (m *StandIn) environ(where place) []string {
	libraries := os.Getenv("LD_LIBRARY_PATH")
	var env []string
	if !m.Real {
		context := m.Context
		if where == outside {
			context = 0 // a program that only reads must not use memory
		}
		libraries = strings.TrimSuffix(m.driver+":"+libraries, ":")
		env = append(env,
			"FAKEGPU="+m.GPU,
			"FAKEGPU_STATE="+filepath.Join(filepath.Dir(m.Region), "gpu"),
			"FAKEGPU_STRICT=1", // a wrong call of the driver ends the program
			"FAKEGPU_CONTEXT="+strconv.FormatUint(context, 10))
	}
	if libraries != "" {
		env = append(env, "LD_LIBRARY_PATH="+libraries)
	}
	if where == inside {
		env = append(env,
			"LD_PRELOAD="+m.preload,
			"RATION_REGION="+m.Region,
			limit.EnvMemory+"="+strconv.FormatUint(m.Limit, 10),
			"RATION_LOG=info")
	}
	for _, entry := range os.Environ() {
		if !ownVariables().MatchString(entry) {
			env = append(env, entry)
		}
	}
	return env
}

func in(job bool) place {
	if job {
		return inside
	}
	return outside
}

// Memory is a device's memory as shown by nvidia-smi.
type Memory struct {
	Used  uint64 `json:"used_mib"`
	Total uint64 `json:"total_mib"`
}

var memoryColumn = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(\d+)MiB / +(\d+)MiB`)
})

// SMI runs fake-smi, fakegpu's nvidia-smi, inside the job or outside, and returns what it prints
// about the device.
func (m *StandIn) SMI(inJob bool) (Memory, error) {
	const name, within = "fake-smi", time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(m.driver, name))
	cmd.Env, cmd.Stderr = m.environ(in(inJob)), &stderr
	out, err := cmd.Output()
	if err != nil {
		return Memory{}, fmt.Errorf("running %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	found := memoryColumn().FindSubmatch(out)
	if found == nil {
		return Memory{}, fmt.Errorf("running %s: it printed no device", name)
	}
	var t Memory
	_, err = fmt.Sscan(string(found[1])+" "+string(found[2]), &t.Used, &t.Total)
	return t, err
}
