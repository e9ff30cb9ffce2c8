package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ration/internal/embedded"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
)

// facts are what the probe prints, by their first word.
type facts map[string]string

func (f facts) size(way string) (limit.Size, bool) {
	n, err := strconv.ParseUint(f[way], 10, 64)
	return limit.Size(n), err == nil
}

// ways are those in which programs reach a call.
var ways = []string{"link", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", "nvmlDeviceGetMemoryInfo"}

// enough is how long a driver may take to start.
const enough = time.Minute

// probe runs the probe, with settings added to an environment that has none of
// ours.
func (v *visit) probe(settings ...string) (facts, string, error) {
	dir, err := embedded.Probe.Unpack()
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "probe"))
	cmd.Env = append(v.environ(), settings...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err = cmd.Run()
	found := facts{}
	for line := range strings.Lines(out.String()) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[key] = value
		}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil // its words say why
	}
	return found, strings.TrimSpace(complaints.String()), err
}

// environ is this process's, without what would put a library of ours into it.
func (v *visit) environ() (out []string) {
	for _, entry := range os.Environ() {
		key, _, _ := strings.Cut(entry, "=")
		if key == "LD_PRELOAD" || key == launch.EnvRegion || key == job.EnvRegion || key == limit.EnvTolerance ||
			strings.HasPrefix(key, limit.EnvMemory) || strings.HasPrefix(key, limit.EnvCompute) {
			continue
		}
		if v.drivers != "" && (key == "FAKEGPU" || key == "FAKEGPU_STATE" || key == "LD_LIBRARY_PATH") {
			continue
		}
		out = append(out, entry)
	}
	if v.drivers != "" {
		out = append(out, "FAKEGPU="+v.FakeGPU, "FAKEGPU_STATE="+filepath.Join(v.scratch, "gpu"), "LD_LIBRARY_PATH="+v.drivers)
	}
	return out
}

// driver looks at what is there without us, and whether the library loads.
func (v *visit) driver() {
	bare, complaints, err := v.probe()
	if err != nil {
		v.fail("C library", "use a system with glibc; on others nothing can be preloaded", "the probe does not run: %v %s", err, complaints)
		return
	}
	v.pass("C library", "glibc %s", bare["glibc"])
	v.device = bare
	if v.library != "" {
		with, complaints, err := v.probe("LD_PRELOAD=" + v.library)
		switch {
		case err != nil || with["between"] != v.library:
			v.fail("library", "see what it says; was it built for an older system?", "%s is not loaded: %s", v.library, complaints)
			v.library = ""
		default:
			v.pass("library", "%s loads", v.library)
		}
	}
	switch {
	case bare["libcuda"] == "":
		v.warn("driver", "install the NVIDIA driver, or in a container use the NVIDIA runtime", "no NVIDIA driver found: %s", bare["libcuda-missing"])
	case bare["init"] != "0":
		v.fail("driver", "try nvidia-smi; error 100 means that no device is visible, 802 and 803 that its parts do not match",
			"%s does not start: error %s", bare["libcuda"], bare["init"])
	default:
		v.pass("driver", "%s, CUDA %s, driver %s", bare["libcuda"], cudaVersion(bare["cuda"]), orUnknown(bare["driver"]))
	}
	if bare["libcuda"] != "" && bare["nvml"] == "" {
		v.warn("NVML", "make libnvidia-ml.so.1 available: it is how the driver's own figures are known",
			"not usable: %s; drift cannot be seen, nor percentages be given", orUnknown(bare["nvml-missing"]))
	}
}

func cudaVersion(text string) string {
	n, err := strconv.Atoi(text)
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10)
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// interception gives a program half of a device, and asks it what it sees.
func (v *visit) interception() {
	const name = "interception"
	total, ok := v.device.size("dlsym")
	switch {
	case v.library == "":
		v.skip(name, "there is no library")
		return
	case v.device["init"] != "0" || !ok:
		v.skip(name, "there is no driver (ration doctor --fake-gpu h200 looks at a stand-in)")
		return
	}
	half := total / 2 / limit.MiB * limit.MiB
	seen, complaints, err := v.probe("LD_PRELOAD="+v.library, launch.EnvRegion+"="+filepath.Join(v.scratch, "probe"), limit.EnvMemory+"="+half.Exact())
	if err != nil {
		v.fail(name, "report it, with the output of ration doctor --json", "the probe ended: %v %s", err, complaints)
		return
	}
	var caught, past []string
	for _, way := range ways {
		if _, there := v.device.size(way); !there {
			continue // this driver does not have it
		}
		if size, ok := seen.size(way); ok && size == half {
			caught = append(caught, way)
		} else {
			past = append(past, fmt.Sprintf("%s (it sees %v)", way, seen[way]))
		}
	}
	if len(past) > 0 {
		v.fail(name, "report it, with the output of ration doctor --json", "with a half of %v, calls get past the library by %s. %s", half, strings.Join(past, ", "), complaints)
		return
	}
	v.pass(name, "a program with half of device 0 sees just that, by %s", strings.Join(caught, ", "))
}
