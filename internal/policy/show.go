package policy

import (
	"os"
	"path/filepath"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
)

// Standing is the ration of a user.
type Standing struct {
	UID     int           `json:"uid"`
	User    string        `json:"user"`
	Rule    string        `json:"rule"`            // users.anna, groups.students, everybody or root; empty if it is unknown
	Error   string        `json:"error,omitempty"` // why the rule is unknown
	Exempt  bool          `json:"exempt"`          // not rationed
	Ration  limit.Limits  `json:"ration"`
	Largest limit.Limits  `json:"largest"`
	Asked   *limit.Limits `json:"asked,omitempty"` // the ration that the user asked for and got
	Job     string        `json:"job,omitempty"`   // path of the region; empty if there is none
	Limits  []DeviceLimit `json:"limits,omitempty"`
	GPUs    []int         `json:"gpus,omitempty"`   // devices that the job sees; empty if it sees all
	Placed  string        `json:"placed,omitempty"` // why the job is on these devices
}

// RuleText is a rule of the file.
type RuleText struct {
	Rule    string       `json:"rule"` // users.anna, groups.students, everybody
	Exempt  bool         `json:"exempt"`
	Ration  limit.Limits `json:"ration"`
	Largest limit.Limits `json:"largest"` // the most that its users may ask for
}

// Rules returns all rules in the order in which they apply: users', groups' as in the file, everybody's.
func (p *Policy) Rules() (out []RuleText) {
	for _, r := range slices.Concat(byLine(p.Users), byLine(p.Groups), []*Rule{p.Everybody}) {
		out = append(out, RuleText{r.Source, r.Exempt, r.Default, r.Largest})
	}
	return out
}

// DeviceLimit is the limit of a user's job on a device.
type DeviceLimit struct {
	Device     int    `json:"device"`
	Memory     uint64 `json:"memory"` // bytes; 0 for no limit
	Compute    int    `json:"compute"`
	ComputeMax int    `json:"compute_max"`
}

// Show returns the ration of a user.
func (p *Policy) Show(uid int) Standing {
	out := Standing{UID: uid, User: proc.UserName(uid), Rule: "root", Exempt: true}
	rule, err := p.For(uid)
	switch {
	case err != nil:
		out.Rule, out.Exempt, out.Error = "", false, err.Error()
	case rule == nil:
		return out
	default:
		out.Rule, out.Exempt, out.Ration, out.Largest = rule.Source, rule.Exempt, rule.Default, rule.Largest
	}
	if asked, err := readAsked(uid); err == nil {
		out.Asked = &asked
	}
	path := job.OfUserPath(uid)
	if _, err := os.Lstat(filepath.Join(filepath.Dir(path), job.CreatedName)); err != nil {
		return out
	}
	out.Job = path
	has, err := readLimits(path)
	if err != nil {
		return out
	}
	if at := has.Visible(); at.Count() < abi.Devices {
		out.GPUs, out.Placed = at.Devices(), job.InfoOf(jobOf(uid)).Placed
	}
	for d := range abi.Devices {
		if has.Hidden[d] != 0 {
			continue
		}
		on := DeviceLimit{Device: d, Compute: int(has.Compute[d]), ComputeMax: int(has.ComputeMax[d])}
		if has.Memory[d].Limited() {
			on.Memory = has.Memory[d].Bytes()
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
