package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ration/internal/agent"
	"ration/internal/job"
)

// unitPaths are where packages and make install put the agent's unit.
var unitPaths = []string{"/etc/systemd/system/ration-agent.service", "/usr/lib/systemd/system/ration-agent.service", "/lib/systemd/system/ration-agent.service",
	"/usr/local/lib/systemd/system/ration-agent.service"}

// restartAgent is what to do about an agent that does not do what it should.
const restartAgent = "start it again: systemctl restart ration-agent, or ration agent"

// checkAgent looks for an agent, and asks it; and for its unit, where systemd runs.
func (c *checker) checkAgent() {
	c.checkSocket()
	if unit := slices.IndexFunc(unitPaths, isThere); unit >= 0 && isThere("/run/systemd/system") {
		c.checkUnit(systemctlShow())
		if job.AllUsers() && !isThere(job.Folder()) {
			c.warn("agent's folder", "make it: systemd-tmpfiles --create", "%s is not there: the agent's unit does not start without it", job.Folder())
		}
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkSocket asks the agent behind the first socket that there is.
func (c *checker) checkSocket() {
	for _, path := range agent.Sockets() {
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.warn("agent", "let users enter "+filepath.Dir(path), "%v", err)
			return
		}
		client := agent.NewClient(path)
		begin := time.Now()
		m, err := client.Machine()
		took := time.Since(begin).Round(time.Millisecond)
		switch {
		case errors.Is(err, agent.ErrNone):
			c.warn("agent", restartAgent, "there is %s, and nobody behind it who is root or this user: %v", path, err)
		case err != nil:
			c.warn("agent", restartAgent, "%s: %v", path, err)
		case client.Version() == "":
			c.warn("agent", restartAgent, "%s answers in %v, and is of an earlier version than this, %s", path, took, c.Version)
		case client.Version() != c.Version:
			c.warn("agent", restartAgent, "%s answers in %v, and is of version %s; this is %s", path, took, client.Version(), c.Version)
		default:
			c.pass("agent", "%s answers in %v, with %d of the jobs that you may see", path, took, len(m.Jobs))
		}
		return
	}
	c.pass("agent", "none runs, and none is needed")
}

// systemctlShow returns what systemd says of the unit, NAME=VALUE a line each.
func systemctlShow() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "systemctl", "show", "ration-agent.service", "--property=LoadState,ActiveState,SubState,Result,UnitFileState,NeedDaemonReload,NRestarts").Output()
}

// checkUnit checks the agent's unit, which is installed, by what systemctl show has said.
func (c *checker) checkUnit(shown []byte, err error) {
	const name = "agent's unit"
	if err != nil {
		c.skip(name, "systemctl show: %v", err)
		return
	}
	is := map[string]string{}
	for line := range strings.Lines(string(shown)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	switch {
	case is["LoadState"] != "loaded":
		c.warn(name, "systemctl daemon-reload", "ration-agent.service is installed, and to systemd it is %q", is["LoadState"])
	case is["ActiveState"] == "failed":
		c.warn(name, "journalctl -u ration-agent says more", "ration-agent.service has failed: %s", is["Result"])
	case is["ActiveState"] == "activating" && is["SubState"] == "auto-restart":
		c.warn(name, "journalctl -u ration-agent says more", "ration-agent.service ends again and again: %s", is["Result"])
	case is["NeedDaemonReload"] == "yes":
		c.warn(name, "systemctl daemon-reload, and systemctl restart ration-agent", "ration-agent.service has changed since systemd read it")
	case is["ActiveState"] == "active" && is["UnitFileState"] == "disabled":
		c.warn(name, "systemctl enable ration-agent", "ration-agent.service runs, and will not after the next start of the machine")
	case is["ActiveState"] == "active":
		c.pass(name, "ration-agent.service runs, and is %s", is["UnitFileState"])
	default:
		c.pass(name, "ration-agent.service does not run, and is %s (systemctl enable --now ration-agent starts it)", is["UnitFileState"])
	}
}
