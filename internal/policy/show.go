package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
)

// Standing is the ration of a user.
type Standing struct {
	UID   int    `json:"uid"`
	User  string `json:"user"`
	Rule  string `json:"rule"`            // users.anna, groups.students, everybody or root; empty if it is unknown
	Error string `json:"error,omitempty"` // why the rule is unknown
	Terms
	Asked      *limit.Limits `json:"asked,omitempty"` // the ration that the user has because of `ration policy ask`; not set if it asked for nothing
	Job        string        `json:"job,omitempty"`   // path of the region; empty if there is none
	Limits     []DeviceLimit `json:"limits,omitempty"`
	RationLent bool          `json:"ration_lent,omitempty"` // the job sleeps, and its ration is lent
	Runs       int           `json:"runs,omitempty"`        // of the user, which have parts of the ration; Limits are those of the rest
	GPUs       []int         `json:"gpus,omitempty"`        // devices that the job sees; empty if it sees all
	Placed     string        `json:"placed,omitempty"`      // why the job is on these devices
	Moves      bool          `json:"moves,omitempty"`       // the rule has other devices: the job moves there when no program of the user runs, and there is room
	moves      string        // where, and when
	runs       []string      // what each run of the user has
	// Only users without a job who ask for themselves see this.
	Room     *[]int `json:"room,omitempty"`      // devices that have room for the ration now
	GPUCount int    `json:"gpu_count,omitempty"` // on how many devices the ration will be, which are not chosen yet, also of one that moves; 0 for all
}

// Has is the ration that the user has, or gets when there is room.
func (s *Standing) Has() limit.Limits {
	if s.Asked != nil {
		return *s.Asked
	}
	return s.Ration
}

// LaterText says where the user's job has less than the ration now, and which runs have the rest; empty if it has all.
func (s *Standing) LaterText() string {
	var on []string
	if s.Moves {
		on = append(on, s.moves)
	}
	if len(s.runs) > 0 {
		on = append(on, "has what runs leave of the ration: "+strings.Join(s.runs, ", "))
	}
	for _, l := range s.Limits {
		if l.Later > 0 {
			on = append(on, fmt.Sprintf("has %s of GPU %d, of the %s of the ration (the rest when there is room; if root has changed the limit, with ration policy apply)", humanfmt.Bytes(l.Memory), l.Device, humanfmt.Bytes(l.Later)))
		}
	}
	return strings.Join(on, "; ")
}

// RuleText is a rule of the file.
type RuleText struct {
	Rule string `json:"rule"` // users.anna, groups.students, everybody
	Terms
}

// Terms are what a rule says.
type Terms struct {
	Exempt     bool         `json:"exempt"` // not rationed
	Ration     limit.Limits `json:"ration"`
	Largest    limit.Limits `json:"largest"`               // the most that the users may ask for
	WhenFull   string       `json:"when_full,omitempty"`   // wait or refuse; empty if exempt
	SleepAfter string       `json:"sleep_after,omitempty"` // empty if jobs do not fall asleep by themselves
	Projects   []string     `json:"projects,omitempty"`    // that jobs may be accounted to; empty if each label is a claim
}

func (rule *Rule) terms() Terms {
	t := Terms{Exempt: rule.Exempt, Ration: rule.Default, Largest: rule.Largest, Projects: rule.Projects}
	switch {
	case rule.Exempt:
	case rule.Waits:
		t.WhenFull = WhenFullWait
	default:
		t.WhenFull = WhenFullRefuse
	}
	if rule.SleepAfter > 0 {
		t.SleepAfter = shortSpan(rule.SleepAfter)
	}
	return t
}

// shortSpan formats a duration as the file does: 30m, not 30m0s.
func shortSpan(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Rules returns all rules in the order in which they apply: users', groups' as in the file, everybody's.
func (p *Policy) Rules() (out []RuleText) {
	for _, r := range slices.Concat(byLine(p.Users), byLine(p.Groups), []*Rule{p.Everybody}) {
		out = append(out, RuleText{r.Source, r.terms()})
	}
	return out
}

// DeviceLimit is the limit of a user's job on a device.
type DeviceLimit struct {
	Device     int    `json:"device"`
	Limited    bool   `json:"limited"` // in memory
	Memory     uint64 `json:"memory"`  // bytes; 0 without a limit, and also if runs have the whole ration
	Compute    int    `json:"compute"`
	ComputeMax int    `json:"compute_max"`
	Later      uint64 `json:"later,omitempty"` // bytes of the ration, if Memory is less now
}

// Show returns the rations of users.
func (p *Policy) Show(uids ...int) (out []Standing) {
	r := p.onKnown()
	defer r.close()
	for _, uid := range uids {
		out = append(out, r.show(uid))
	}
	return out
}

func (r *rations) show(uid int) Standing {
	out := Standing{UID: uid, User: proc.UserName(uid), Rule: "root", Terms: Terms{Exempt: true}}
	rule, err := r.policy.For(uid)
	switch {
	case err != nil:
		out.Rule, out.Exempt, out.Error = "", false, err.Error()
	case rule == nil:
		return out
	default:
		out.Rule, out.Terms = rule.Source, rule.terms()
	}
	if asked, err := readAsked(uid); err == nil && asked.IsSet() && rule != nil {
		has := rule.ration(asked, r.usable())
		out.Asked = &has
	}
	path := job.OfUserPath(uid)
	if _, err := os.Lstat(filepath.Join(filepath.Dir(path), job.CreatedName)); err != nil {
		return out
	}
	out.Job = path
	has, err := region.LimitsBeside(path)
	if err != nil {
		return out
	}
	out.RationLent = lent(uid)
	at := has.Visible()
	if at.Count() < abi.Devices {
		out.GPUs, out.Placed = at.Devices(), job.InfoOf(jobOf(uid)).Placed
	}
	if out.Moves = !out.Exempt && r.misplacedAt(uid, at); out.Moves {
		out.GPUCount, out.moves = r.wanted(rule.Default), r.movesText(uid, at)
	}
	runs := readyRuns(uid)
	out.Runs = len(runs)
	for _, run := range runs {
		if part, err := region.LimitsBeside(run.Path); err == nil {
			_, name, _ := job.RunOf(run.Name)
			out.runs = append(out.runs, runTitle(uid, name)+r.rationText(" has ", part))
		}
	}
	whole := !out.RationLent && len(job.RunsOf(uid)) == 0 // otherwise the user has more than the job, or is about to
	ration, unknown := r.limitsOf(out.Has())
	for d := range abi.Devices {
		if has.Hidden[d] != 0 {
			continue
		}
		on := DeviceLimit{Device: d, Compute: int(has.Compute[d]), ComputeMax: int(has.ComputeMax[d])}
		if on.Limited = has.Memory[d].Limited(); on.Limited {
			on.Memory = has.Memory[d].Bytes()
			if should := ration.Memory[d]; whole && unknown == nil && should.Limited() && should.Bytes() > on.Memory {
				on.Later = should.Bytes()
			}
		}
		if has.Memory[d].Limited() || on.Compute != 0 || on.ComputeMax != 0 {
			out.Limits = append(out.Limits, on)
		}
	}
	return out
}

// Named returns the users that the policy names, that have a job, or that are exempt.
func (p *Policy) Named() []int {
	uids := Users()
	for name := range p.Users {
		if uid, err := names.uid(name); err == nil {
			uids = append(uids, uid)
		}
	}
	return sortedUsers(uids)
}
