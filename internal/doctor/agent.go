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
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/policy"
	"ration/internal/proc"
)

// unitFolders are the folders in which packages, make install and administrators install the
// agent's units.
var unitFolders = []string{"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/usr/local/lib/systemd/system"}

func isInstalled(unit string) bool {
	return slices.ContainsFunc(unitFolders, func(folder string) bool { return isThere(filepath.Join(folder, unit)) })
}

// restartAgent returns the remedy for an agent that does not work.
func restartAgent() string {
	if !hasSystemd() {
		return "start it again: ration agent"
	}
	return "start it again: systemctl restart ration-agent, or ration agent"
}

// hasSystemd reports whether systemd manages this machine. Advice names systemctl only there.
func hasSystemd() bool { return isThere(systemdFolder) }

// systemdFolder is a variable for tests.
var systemdFolder = "/run/systemd/system"

// checkAgent checks the agent's socket and, where systemd runs, its units.
func (c *checker) checkAgent() {
	c.checkSocket()
	byUnit := isInstalled("ration-agent.service") && hasSystemd()
	if job.AllUsers() && (byUnit || isThere(filepath.Join(job.Folder(), job.AgentSocket))) {
		c.checkAgentUser(job.AgentUser)
	}
	if byUnit {
		service, err := systemctlShow("ration-agent.service")
		if err != nil {
			c.skip(agentUnit, "systemctl show: %v", err)
			return
		}
		var socket unitState
		if isInstalled("ration-agent.socket") {
			if socket, err = systemctlShow("ration-agent.socket"); err != nil {
				c.skip(agentUnit, "systemctl show: %v", err)
				return
			}
		}
		c.checkUnits(service, socket)
		if job.AllUsers() && !isThere(job.Folder()) {
			c.warn("agent's folder", "make it: systemd-tmpfiles --create", "%s does not exist: the agent's unit does not start without it", job.Folder())
		}
	}
}

// notifyUnit is the name of the check of the notifier's unit.
const notifyUnit = "notifier's unit"

// checkNotifier checks the unit of ration notify, which need not run.
func (c *checker) checkNotifier() {
	const unit = "ration-notify.service"
	if !isInstalled(unit) || !hasSystemd() {
		return
	}
	is, err := systemctlShow(unit)
	if err != nil {
		c.skip(notifyUnit, "systemctl show: %v", err)
		return
	}
	rules, _, _ := policy.ReadNotify(policy.ConfigFile) // a file that is wrong is told of elsewhere
	c.checkNotifyUnit(unit, is, len(rules))
}

func (c *checker) checkNotifyUnit(unit string, is unitState, sections int) {
	if is["ActiveState"] == "inactive" { // it was not started
		if sections > 0 {
			c.warn(notifyUnit, "systemctl enable --now "+strings.TrimSuffix(unit, ".service"), "%s has %s, and %s does not run: nothing is sent", policy.ConfigFile, humanfmt.Plural(sections, "[[notify]] section", "[[notify]] sections"), unit)
		}
		return
	}
	if c.checkUnit(notifyUnit, unit, is) {
		c.pass(notifyUnit, "%s runs", unit)
	}
}

// checkAgentUser checks that the user of root's agent exists, if the machine has an agent.
func (c *checker) checkAgentUser(name string) {
	uid, _, err := proc.LocalUser(name)
	switch {
	case errors.Is(err, proc.ErrNoUser):
		c.warn(agentUserCheck, agent.MakeUser+"; then "+restartAgent(), "there is no user %s: root's agent reads files of users as root", name)
	case err != nil:
		c.warn(agentUserCheck, "look at the list of users, /etc/passwd", "%v", err)
	case uid == 0:
		c.warn(agentUserCheck, "give it a number of its own", "user %s is root", name)
	default:
		c.pass(agentUserCheck, "%s, %d: root's agent reads as that user what users have written", name, uid)
	}
}

// agentUserCheck is the name of that check.
const agentUserCheck = "agent's user"

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkSocket sends a request to the agent at the first socket that exists.
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
			c.warn("agent", restartAgent(), "%s exists, but no agent of root or of this user listens there: %v", path, err)
		case err != nil:
			c.warn("agent", restartAgent(), "%s: %v", path, err)
		case client.Version() == "":
			c.warn("agent", restartAgent(), "%s answers in %v, and its version is older than this one, %s", path, took, c.Version)
		case client.Version() != c.Version:
			c.warn("agent", restartAgent(), "%s answers in %v, and has version %s; this is %s", path, took, client.Version(), c.Version)
		default:
			c.pass("agent", "%s answers in %v, with %d of the jobs that you may see", path, took, len(m.Jobs))
		}
		return
	}
	c.pass("agent", "none runs, and none is needed")
}

// unitState has the properties of a unit, as systemd shows them.
type unitState map[string]string

func parseUnit(shown string) unitState {
	is := unitState{}
	for line := range strings.Lines(shown) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	return is
}

// systemctlShow asks systemd for the properties of a unit.
func systemctlShow(unit string) (unitState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	shown, err := exec.CommandContext(ctx, "systemctl", "show", unit, "--property=LoadState,ActiveState,SubState,Result,UnitFileState,NeedDaemonReload,NRestarts").Output()
	return parseUnit(string(shown)), err
}

// agentUnit is the name of the check of the agent's units.
const agentUnit = "agent's unit"

// checkUnits checks the agent's installed units. socket is nil if an administrator's own unit has
// no socket.
func (c *checker) checkUnits(service, socket unitState) {
	if !c.checkUnit(agentUnit, "ration-agent.service", service) || socket != nil && !c.checkUnit(agentUnit, "ration-agent.socket", socket) {
		return
	}
	runs, listens := service["ActiveState"] == "active", socket["ActiveState"] == "active"
	switch {
	case runs && !listens && socket != nil:
		c.warn(agentUnit, "systemctl restart ration-agent", "ration-agent.service runs, and ration-agent.socket is %s: while the agent restarts, commands work without it", socket["ActiveState"])
	case runs && service["UnitFileState"] == "disabled" && socket["UnitFileState"] != "enabled":
		c.warn(agentUnit, "systemctl enable ration-agent", "ration-agent.service runs, but will not start at the next boot")
	case runs && service["UnitFileState"] == "disabled":
		c.pass(agentUnit, "ration-agent.service runs; after the next start of the machine, from the first question on: ration-agent.socket is %s", socket["UnitFileState"])
	case runs:
		c.pass(agentUnit, "ration-agent.service runs, and is %s", service["UnitFileState"])
	case listens:
		c.pass(agentUnit, "ration-agent.service does not run: the next question starts it; ration-agent.socket is %s", socket["UnitFileState"])
	default:
		c.pass(agentUnit, "ration-agent.service does not run, and is %s (systemctl enable --now ration-agent starts it)", service["UnitFileState"])
	}
}

// checkUnit checks one unit, and reports whether it is in order.
func (c *checker) checkUnit(check, unit string, is unitState) bool {
	name, _, _ := strings.Cut(unit, ".") // of the service
	switch {
	case is["LoadState"] == "masked":
		c.warn(check, "systemctl unmask "+unit+", if that was not meant", "%s is masked: nothing can start it", unit)
	case is["LoadState"] != "loaded":
		c.warn(check, "systemctl daemon-reload", "%s is installed, but systemd reports it as %q", unit, is["LoadState"])
	case is["ActiveState"] == "failed":
		c.warn(check, "journalctl -u "+name+" says more; then systemctl restart "+name, "%s has failed: %s", unit, is["Result"])
	case is["ActiveState"] == "activating" && is["SubState"] == "auto-restart":
		c.warn(check, "journalctl -u "+name+" says more", "%s keeps ending: %s", unit, is["Result"])
	case is["NeedDaemonReload"] == "yes":
		c.warn(check, "systemctl daemon-reload, and systemctl restart "+name, "%s has changed since systemd read it", unit)
	default:
		return true
	}
	return false
}
