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
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
)

// probeOutput is the output of the probe: a key and a value in each line.
type probeOutput map[string]string

func (p probeOutput) size(key string) (limit.Size, bool) {
	n, err := strconv.ParseUint(p[key], 10, 64)
	return limit.Size(n), err == nil
}

// lookups are the ways in which programs find a driver function. The probe prints for each the size
// of device 0 that it gets.
var lookups = []string{"link", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", "nvmlDeviceGetMemoryInfo"}

// probeTimeout is how long the probe may run; a driver can take long to start.
const probeTimeout = time.Minute

// What the probe does if not all. To look takes no ration under a policy, and does not wait for one.
const (
	look = "look"
	load = "load" // it does not use the driver
)

// runProbe runs the probe in an environment without ration's variables, with settings added.
func (c *checker) runProbe(settings []string, arguments ...string) (output probeOutput, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	cmd, err := c.probe(ctx, settings, arguments...)
	if err != nil {
		return nil, "", err
	}
	var out, errText bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errText
	err = cmd.Run()
	output = probeOutput{}
	for line := range strings.Lines(out.String()) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if _, has := output[key]; !has { // keep the first of several libraries: the one of a policy in force comes after it
				output[key] = value
			}
		}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil // the output says why
	}
	return output, strings.TrimSpace(errText.String()), err
}

// probe returns the command that runs the probe.
func (c *checker) probe(ctx context.Context, settings []string, arguments ...string) (*exec.Cmd, error) {
	dir, err := embedded.Probe.Unpack()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "probe"), arguments...)
	cmd.Env = append(c.environ(), settings...)
	return cmd, nil
}

// environ returns this process's environment without the variables of a job, and with the stand-in
// driver if it is used.
func (c *checker) environ() (out []string) {
	for _, entry := range os.Environ() {
		key, _, _ := strings.Cut(entry, "=")
		if key == launch.PreloadVariable || key == launch.EnvRegion || key == job.EnvRegion || limit.IsVariable(key) || key == limit.EnvMode {
			continue
		}
		if c.fakeGPU != "" && (key == "FAKEGPU" || key == "FAKEGPU_STATE" || key == "LD_LIBRARY_PATH") {
			continue
		}
		out = append(out, entry)
	}
	if c.fakeGPU != "" {
		out = append(out, "FAKEGPU="+c.FakeGPU, "FAKEGPU_STATE="+filepath.Join(c.scratch, "gpu"), "LD_LIBRARY_PATH="+c.fakeGPU)
	}
	return out
}

// checkDriver checks the driver without the library, and whether the library loads.
func (c *checker) checkDriver() {
	bare, stderr, err := c.runProbe(nil, look)
	if err != nil {
		c.fail("C library", "use a system with glibc; on others nothing can be preloaded", "the probe does not run: %v %s", err, stderr)
		return
	}
	c.pass("C library", "glibc %s", bare["glibc"])
	c.bare = bare
	if c.library != "" {
		with, stderr, err := c.runProbe([]string{launch.PreloadVariable + "=" + c.library}, load)
		switch {
		case err != nil || with["between"] != c.library:
			c.fail("library", "see the message; was it built for an older system?", "%s is not loaded: %s", c.library, stderr)
			c.library = ""
		default:
			c.pass("library", "%s loads", c.library)
		}
	}
	switch {
	case bare["libcuda"] == "":
		c.warn("driver", "install the NVIDIA driver, or in a container use the NVIDIA runtime", "no NVIDIA driver found: %s", bare["libcuda-missing"])
	case bare["init"] != "0":
		c.fail("driver", "try nvidia-smi; error 100 means that no device is visible, 802 and 803 that its parts do not match",
			"%s does not start: error %s", bare["libcuda"], bare["init"])
	default:
		c.pass("driver", "%s, CUDA %s, driver %s", bare["libcuda"], cudaVersion(bare["cuda"]), orUnknown(bare["driver"]))
	}
	if c.FakeGPU == "" {
		if driver, err := gpu.Open(""); err == nil {
			c.checkDevices(driver.Devices)
			driver.Close()
		}
	}
	if bare["libcuda"] != "" && bare["nvml"] == "" {
		c.warn("NVML", "make libnvidia-ml.so.1 available: it reports what the driver counts",
			"not usable: %s; without it ration shows no drift, and takes no percentages", orUnknown(bare["nvml-missing"]))
	}
}

// checkDevices warns of each GPU that the driver does not answer for.
func (c *checker) checkDevices(devices []gpu.Device) {
	for _, d := range devices {
		if d.Failed != nil {
			c.warn("GPUs", "nvidia-smi and the kernel's log (dmesg, Xid) say why; the other GPUs go on", "GPU %d does not answer: %s", d.Index, strings.TrimSuffix(d.Failed.Error(), " (try nvidia-smi)"))
		}
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

// checkInterception runs the probe with a limit of half a device, and checks that every way of
// finding the functions reports that size.
func (c *checker) checkInterception() {
	const name = "interception"
	total, ok := c.bare.size("dlsym")
	switch {
	case c.library == "":
		c.skip(name, "there is no library")
		return
	case job.Ruled():
		c.skip(name, "the policy puts all your programs into one job (as root, ration doctor tries it)")
		return
	case c.bare["init"] != "0" || !ok:
		c.skip(name, "there is no driver (ration doctor --fake-gpu h200 checks a stand-in)")
		return
	}
	half := total / 2 / limit.MiB * limit.MiB
	inJob, stderr, err := c.runProbe([]string{launch.PreloadVariable + "=" + c.library, launch.EnvRegion + "=" + filepath.Join(c.scratch, "probe"), limit.EnvMemory + "=" + half.Exact()})
	if err != nil {
		c.fail(name, "report it, with the output of ration doctor --json", "the probe ended: %v %s", err, stderr)
		return
	}
	var intercepted, missed []string
	for _, way := range lookups {
		if _, known := c.bare.size(way); !known {
			continue // this driver does not have the function
		}
		if size, ok := inJob.size(way); ok && size == half {
			intercepted = append(intercepted, way)
		} else {
			missed = append(missed, fmt.Sprintf("%s (it sees %v)", way, inJob[way]))
		}
	}
	if len(missed) > 0 {
		c.fail(name, "report it, with the output of ration doctor --json", "with a half of %v, calls bypass the library through %s. %s", half, strings.Join(missed, ", "), stderr)
		return
	}
	c.pass(name, "a program with half of device 0 sees just that, by %s", strings.Join(intercepted, ", "))
}
