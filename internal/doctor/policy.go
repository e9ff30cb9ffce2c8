package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/policy"
)

// keeperService is the unit of the policy's service.
const keeperService = "ration-policy.service"

// keeperUnit returns the properties of the policy's unit, or nil.
func keeperUnit() unitState {
	if !isInstalled(keeperService) || !hasSystemd() {
		return nil
	}
	unit, err := systemctlShow(keeperService)
	if err != nil {
		return nil
	}
	return unit
}

// checkPolicy checks whether the policy in force applies to programs and users.
func (c *checker) checkPolicy() {
	p, err := policy.InForce()
	preloaded := policy.Preloaded()
	_, kept, inKept := job.Enclosing()
	switch {
	case inKept && err == nil:
		c.pass("policy", "one is in force; all programs here are in %s instead (ration run --keep)", kept)
		return
	case errors.Is(err, policy.ErrDisabled) && preloaded:
		c.warn("policy", forRoot("ration policy disable, which takes it out"), "none is in force, and every program loads %s", policy.Library)
		return
	case errors.Is(err, policy.ErrDisabled):
		return // no policy, as on most machines
	case err != nil:
		c.fail("policy", forRoot("ration policy enable, which writes it again"), "%v", err)
		return
	case !preloaded:
		c.fail("policy", forRoot("ration policy enable, which puts it there"), "one is in force, but no program loads %s: no user is limited", policy.Library)
		return
	}
	if _, err := os.Stat(policy.Library); err != nil {
		c.fail("policy", forRoot("ration policy enable, which puts it there"), "%v: no user is limited, and each program prints a warning", err)
		return
	}
	text, err := os.ReadFile(policy.ConfigFile)
	what := "the policy in force stays, because the file has an error"
	if err == nil {
		_, err = policy.Check(policy.ConfigFile) // as ration policy apply would take it
		if p.IsOf(text) {
			what = "the file that is in force has an error by now" // a user or group is gone, or a GPU
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.warn("policy", forRoot("ration policy apply, when it is there again; "+policy.InForceFile+" has the rules"), "%s is missing; the policy in force stays", policy.ConfigFile)
	case err != nil:
		first, rest, more := strings.Cut(err.Error(), "\n")
		if more {
			first += fmt.Sprintf(" (and %d more)", 1+strings.Count(rest, "\n"))
		}
		c.warn("policy", forRoot("ration policy check, which shows all errors, and when they are mended ration policy apply"), "%s: %s", what, first)
	case !p.IsOf(text):
		c.warn("policy", forRoot("ration policy apply"), "%s differs from the policy in force", policy.ConfigFile)
	}
	unit := keeperUnit()
	fix := "systemctl enable --now ration-policy"
	switch {
	case !hasSystemd():
		fix = "ration policy keep, now and after each boot"
	case unit["LoadState"] == "masked":
		fix = "systemctl unmask ration-policy, and " + fix
	}
	fix = forRoot(fix)
	conn, err := connlimit.Dial(policy.Socket, time.Second)
	if err != nil {
		c.warn("policy", fix, "%v; users without a job get none", launch.ErrNoService)
		return
	}
	_ = conn.Close()
	if state := unit["UnitFileState"]; unit != nil && state != "enabled" {
		c.warn("policy", fix, "in force; but after the next boot users without a job get none: %s is %s", keeperService, state)
		return
	}
	uid := os.Getuid()
	s := p.Show(uid)[0]
	switch {
	case uid == 0:
		c.pass("policy", "in force, and kept; root is not rationed")
	case s.Error != "":
		c.warn("policy", "see whether the directory service of this machine answers (getent group)", "%s", s.Error)
	case s.Exempt:
		c.pass("policy", "in force; %s exempts you", s.Rule)
	default:
		text := fmt.Sprintf("in force; %s of memory for %s, by %s", s.Has().Memory.Words(), s.User, s.Rule)
		if later := s.LaterText(); later != "" {
			text += "; the job " + later
		}
		if d := lastDenied(uid); d != nil {
			c.warn("policy", "ration why", "%s; the last request was refused: %s", text, d.Text)
			return
		}
		c.pass("policy", "%s", text)
	}
}

// lastDenied returns the latest refusal of the policy to a user, if that was in the last minutes, for want of room, and the
// user has got nothing since.
func lastDenied(uid int) *job.Denied {
	all, _ := job.ReadDenied(false)
	for _, d := range slices.Backward(all) {
		switch {
		case d.UID != uid, d.Own: // the user has read what nobody else can mend
		case d.Settled, time.Since(d.Time) > 10*time.Minute:
			return nil
		default:
			return &d
		}
	}
	return nil
}

// forRoot returns what root must run, as the reader can have it done.
func forRoot(command string) string {
	if os.Getuid() == 0 {
		return "run " + command
	}
	return "have root run " + command
}
