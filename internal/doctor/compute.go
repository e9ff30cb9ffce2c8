package doctor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ration/internal/embedded"
	"ration/internal/humanfmt"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

// checkCompute creates a context in a job with a share of device 0's time, and checks that the
// driver has set its time slice.
func (c *checker) checkCompute() {
	const name = "compute shares"
	if c.library == "" || c.bare["init"] != "0" || launch.Ruled() {
		c.skip(name, "there is no library, or no driver, or a policy puts all your programs into one job")
		return
	}
	h, result, err := c.tryShare()
	driver := "driver " + orUnknown(c.bare["driver"])
	switch {
	case err != nil:
		c.fail(name, "report it, with the output of ration doctor --json", "%v", err)
	case result != "0":
		c.skip(name, "no context could be made on device 0 to try it: error %s (2 is out of memory)", result)
	case h == nil || h.State == "" || h.Reason == (region.ProcessCompute{}).NotEnforced():
		c.skip(name, "the library reports no time slice")
	case h.State == machine.Kept:
		c.pass(name, "a context of device 0 has the time slice that it was given, %s (%s)", humanfmt.Span(time.Duration(h.Slice)*time.Microsecond), driver)
	default:
		c.warn(name, "caps (--compute-max) need no time slices; "+limit.EnvMode+"=strict refuses programs instead; report the driver's version",
			"shares (--compute) are not enforced on this machine: %s (%s)", h.Reason, driver)
	}
}

// tryShare runs the probe in a job with half of each device's time, and reads the share of its
// context from outside. result is the driver's answer.
func (c *checker) tryShare() (has *machine.ProcessCompute, result string, err error) {
	dir, err := embedded.Probe.Unpack()
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	path := filepath.Join(c.scratch, "compute")
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "probe"), "context")
	cmd.Env = append(c.environ(), launch.PreloadVariable+"="+c.library, launch.EnvRegion+"="+path, limit.EnvCompute+"=50")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("starting the probe: %w", err)
	}
	defer func() {
		_ = in.Close() // this ends the probe
		_ = cmd.Wait() // its output has the result
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	word, result, _ := strings.Cut(strings.TrimSpace(line), " ")
	if word != "context" {
		return nil, "", fmt.Errorf("the probe ended before it had a context: %w %s", err, strings.TrimSpace(stderr.String()))
	}
	if result != "0" {
		return nil, result, nil
	}
	j, err := machine.ReadJob(path)
	if err != nil {
		return nil, result, err
	}
	for _, p := range j.Processes {
		for _, h := range p.Holdings {
			if h.Device == 0 && h.Compute != nil {
				return h.Compute, result, nil
			}
		}
	}
	return nil, result, nil
}
