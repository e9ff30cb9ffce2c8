package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ration/internal/agent"
)

// unitPaths are where packages and make install put the agent's unit.
var unitPaths = []string{"/etc/systemd/system/ration-agent.service", "/usr/lib/systemd/system/ration-agent.service", "/lib/systemd/system/ration-agent.service",
	"/usr/local/lib/systemd/system/ration-agent.service"}

// checkAgent looks for an agent, and asks it.
func (c *checker) checkAgent() {
	for _, path := range agent.Sockets() {
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		restart := "start it again: systemctl restart ration-agent, or ration agent"
		if err != nil {
			c.warn("agent", "let users enter "+filepath.Dir(path), "%v", err)
			return
		}
		client := agent.NewClient(path)
		begin := time.Now()
		m, err := client.Machine()
		switch {
		case errors.Is(err, agent.ErrNone):
			c.warn("agent", restart, "there is %s, and nobody behind it who is root or this user: %v", path, err)
		case err != nil:
			c.warn("agent", restart, "%s: %v", path, err)
		default:
			c.pass("agent", "%s answers in %v, with %d of the jobs that you may see", path, time.Since(begin).Round(time.Millisecond), len(m.Jobs))
		}
		return
	}
	for _, path := range unitPaths {
		if _, err := os.Stat(path); err == nil && os.Geteuid() == 0 {
			c.pass("agent", "none runs, and none is needed (systemctl enable --now ration-agent starts one)")
			return
		}
	}
	c.pass("agent", "none runs, and none is needed")
}
