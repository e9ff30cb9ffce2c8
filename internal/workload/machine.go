// Package workload runs ordinary CUDA programs on a machine that has no GPU: each
// is linked with the driver and knows nothing of ration, has libration.so preloaded,
// and finds fakegpu where the driver would be. What is true for them is true for
// programs that people write.
package workload

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
	"time"

	"ration/internal/embedded"
	"ration/internal/limit"
)

// Machine is a make-believe machine with one device, and a job on it.
type Machine struct {
	GPU     string // as fakegpu names it: h200, or h100:80g
	Region  string // of the job; everything else is in its folder
	Limit   uint64 // that programs bring along
	Context uint64 // what the context of a program costs

	preload, driver, program string // files and folders of what was unpacked
	started                  int
}

// Ready unpacks what the machine needs. The error matches embedded.ErrNotBuilt where
// this ration has none of it.
func (m *Machine) Ready() error {
	for _, need := range []struct {
		bundle embedded.Bundle
		into   *string
		file   string
	}{
		{embedded.Ration, &m.preload, "libration.so"},
		{embedded.FakeGPU, &m.driver, ""},
		{embedded.Workload, &m.program, "workload"},
	} {
		dir, err := need.bundle.Unpack()
		if err != nil {
			return err
		}
		*need.into = filepath.Join(dir, need.file)
	}
	return nil
}

// Built says whether this ration carries what a machine needs.
func Built() error {
	for _, b := range []embedded.Bundle{embedded.Ration, embedded.FakeGPU, embedded.Workload} {
		if err := b.Built(); err != nil {
			return err
		}
	}
	return nil
}

// ours are the variables that a machine sets itself, or that would reach into it.
var ours = regexp.MustCompile(`^(RATION_|CUDA_|FAKEGPU|LIBCUDA_|NVIDIA_|LD_PRELOAD=|LD_LIBRARY_PATH=)`)

// environ is what a program finds: in the job with the library, outside with nothing
// but the driver.
func (m *Machine) environ(inside bool) []string {
	path := m.driver
	if more := os.Getenv("LD_LIBRARY_PATH"); more != "" {
		path += ":" + more
	}
	env := []string{
		"LD_LIBRARY_PATH=" + path,
		"FAKEGPU=" + m.GPU,
		"FAKEGPU_STATE=" + filepath.Join(filepath.Dir(m.Region), "gpu"),
		"FAKEGPU_STRICT=1", // a mistake of the library's in its use of the driver is the end of it
	}
	if inside {
		env = append(env,
			"LD_PRELOAD="+m.preload,
			"RATION_REGION="+m.Region,
			limit.EnvMemory+"="+strconv.FormatUint(m.Limit, 10),
			"RATION_LOG=info",
			"FAKEGPU_CONTEXT="+strconv.FormatUint(m.Context, 10))
	} else {
		env = append(env, "FAKEGPU_CONTEXT=0") // who only looks takes nothing
	}
	for _, entry := range os.Environ() {
		if !ours.MatchString(entry) {
			env = append(env, entry)
		}
	}
	return env
}

// Memory is what a table of devices says.
type Memory struct {
	Used  uint64 `json:"used_mib"`
	Total uint64 `json:"total_mib"`
}

var memory = regexp.MustCompile(`(\d+)MiB / +(\d+)MiB`)

// Table reads the device's line of fake-smi, which is to fakegpu what nvidia-smi is
// to the driver, inside the job or outside.
func (m *Machine) Table(inside bool) (Memory, error) {
	const name, within = "fake-smi", time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(m.driver, name))
	cmd.Env, cmd.Stderr = m.environ(inside), &complaints
	out, err := cmd.Output()
	if err != nil {
		return Memory{}, fmt.Errorf("running %s: %w: %s", name, err, strings.TrimSpace(complaints.String()))
	}
	found := memory.FindSubmatch(out)
	if found == nil {
		return Memory{}, fmt.Errorf("running %s: no device in what it printed", name)
	}
	var t Memory
	_, err = fmt.Sscan(string(found[1])+" "+string(found[2]), &t.Used, &t.Total)
	return t, err
}
