package doctor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

// checkCompute creates a context in a job with a share of device 0's time, and checks that the
// driver has set its time slice. Then it measures whether the GPU keeps such slices.
func (c *checker) checkCompute() {
	const name = "compute shares"
	if job.Ruled() {
		c.skip(name, "they are not tried: the policy puts all your programs into one job (ration ps JOB says whether shares are enforced there)")
		return
	}
	if c.library == "" || c.bare["init"] != "0" {
		c.skip(name, "there is no library, or no driver")
		return
	}
	h, result, err := c.tryShare()
	driver := "driver " + orUnknown(c.bare["driver"])
	const remedy = "caps (--compute-max) need no time slices; " + limit.EnvMode + "=strict refuses programs instead; report the driver's version"
	switch {
	case err != nil:
		c.fail(name, "report it, with the output of ration doctor --json", "%v", err)
	case result != "0":
		c.skip(name, "no context could be made on device 0 to try it: error %s (2 is out of memory)", result)
	case h == nil || h.State == "" || h.Reason == (region.ProcessCompute{}).NotEnforced():
		c.skip(name, "the library reports no time slice")
	case h.State != machine.Kept:
		c.warn(name, remedy, "shares (--compute) are not enforced on this machine: %s (%s)", h.Reason, driver)
	default:
		slice := humanfmt.Span(time.Duration(h.Slice) * time.Microsecond)
		m, remembered, err := c.measureSlices()
		text := m.text(remembered)
		switch {
		case err != nil:
			c.warn(name, "try again; report it if it stays so", "a context of device 0 has the time slice that it was given, %s (%s), but two programs that share it could not be run: %v", slice, driver, err)
		case m.keeps() == ignored:
			c.warn(name, remedy+"; ration doctor --measure measures again", "shares and priorities are not enforced on this machine: %s takes a time slice and does not keep it: %s", driver, text)
		case m.keeps() == unclear:
			c.warn(name, "run ration doctor --measure when the GPU has no other work", "a context of device 0 has the time slice that it was given, %s (%s); whether the GPU keeps it is not clear: %s", slice, driver, text)
		default:
			if text != "" {
				text = ": " + text
			}
			c.pass(name, "a context of device 0 has the time slice that it was given, %s (%s)%s", slice, driver, text)
		}
	}
}

// sharingProbe is a probe that runs in a job with a share of each device's time.
type sharingProbe struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	region string
}

// startProbe starts the probe in a role, and returns when it is ready. result is the driver's answer.
func (c *checker) startProbe(ctx context.Context, role, percent string) (p *sharingProbe, result string, err error) {
	p = &sharingProbe{region: filepath.Join(c.scratch, role+percent)}
	settings := []string{launch.PreloadVariable + "=" + c.library, launch.EnvRegion + "=" + p.region, limit.EnvCompute + "=" + percent}
	if p.cmd, err = c.probe(ctx, settings, role); err != nil {
		return nil, "", err
	}
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("starting the probe: %w", err)
	}
	if result, err = p.read(role); err != nil {
		p.end()
		return nil, "", err
	}
	return p, result, nil
}

// read reads the next line, which has a word and a value.
func (p *sharingProbe) read(word string) (value string, err error) {
	line, err := p.out.ReadString('\n')
	is, value, _ := strings.Cut(strings.TrimSpace(line), " ")
	if is != word {
		return "", fmt.Errorf("the probe ended before it said %s: %w %s", word, err, strings.TrimSpace(p.stderr.String()))
	}
	return value, nil
}

func (p *sharingProbe) end() {
	_ = p.in.Close() // this ends the probe
	_ = p.cmd.Wait() // its output has the result
}

// tryShare runs the probe in a job with half of each device's time, and reads the share of its
// context from outside. result is the driver's answer.
func (c *checker) tryShare() (has *machine.ProcessCompute, result string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	probe, result, err := c.startProbe(ctx, "context", "50")
	if err != nil {
		return nil, "", err
	}
	defer probe.end()
	if result != "0" {
		return nil, result, nil
	}
	j, err := machine.ReadJob(probe.region)
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

// checkPriority checks that no process slows down the locks by which jobs with a priority know of each
// other. The library stops using them then (shim/compute/claims.c).
func (c *checker) checkPriority() {
	const name = "priorities"
	for _, path := range []string{filepath.Join(job.Folder(), job.PriorityFile), filepath.Join(job.RootFolder, job.PriorityFile), job.SharedPriorityFile} {
		pid, holds, err := job.PriorityFlood(path)
		if err != nil {
			c.warn(name, "run ration doctor as root", "the locks on %s cannot be counted: %v", path, err)
			return
		}
		switch {
		case pid < 0:
			c.warn(name, "fuser -v "+path+" lists the processes that have it open", "priorities may not be enforced: a process holds %s on %s", holds, path)
			return
		case pid > 0:
			c.warn(name, fmt.Sprintf("end process %d", pid), "priorities may not be enforced: process %d holds %s on %s", pid, holds, path)
			return
		}
	}
	c.pass(name, "no process is in the way of the locks on a file of priorities")
}
