package policy

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
)

// Standing is what is in force for a user.
type Standing struct {
	UID     int           `json:"uid"`
	User    string        `json:"user"`
	Rule    string        `json:"rule"`            // that counts: users.anna, groups.students, everybody; root; empty where it cannot be known
	Error   string        `json:"error,omitempty"` // why it cannot be known
	Exempt  bool          `json:"exempt"`          // not rationed
	Ration  limit.Limits  `json:"ration"`
	Largest limit.Limits  `json:"largest"`
	Asked   *limit.Limits `json:"asked,omitempty"` // what the user asked for, and has
	Job     string        `json:"job,omitempty"`   // path of the region; empty while there is none
	Limits  []DeviceLimit `json:"limits,omitempty"`
}

// RuleText is a rule as the file has it.
type RuleText struct {
	Rule    string       `json:"rule"` // users.anna, groups.students, everybody
	Exempt  bool         `json:"exempt"`
	Ration  limit.Limits `json:"ration"`
	Largest limit.Limits `json:"largest"` // up to which its users may ask for more
}

// Rules returns all rules, in the order in which they count: those of users, then those of groups as
// they are in the file, and everybody's.
func (p *Policy) Rules() (out []RuleText) {
	users := slices.SortedFunc(maps.Values(p.Users), func(a, b *Rule) int { return a.line - b.line })
	for _, r := range slices.Concat(users, p.sortedGroups(), []*Rule{p.Everybody}) {
		out = append(out, RuleText{r.Source, r.Exempt, r.Default, r.Largest})
	}
	return out
}

// DeviceLimit is what a user's job has on a device, of those with a limit.
type DeviceLimit struct {
	Device     int    `json:"device"`
	Memory     uint64 `json:"memory"` // bytes; 0 for no limit
	Compute    int    `json:"compute"`
	ComputeMax int    `json:"compute_max"`
}

// Show returns what is in force for a user.
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
	o, err := region.OpenOperatorLimits(path)
	if err != nil {
		return out
	}
	for d := range abi.Devices {
		limit, err := o.Limit(d)
		c, err2 := o.Compute(d)
		if errors.Join(err, err2) != nil || !limit.Limited() && c.Share == 0 && c.Max == 0 {
			continue
		}
		on := DeviceLimit{Device: d, Compute: c.Share, ComputeMax: c.Max}
		if limit.Limited() {
			on.Memory = limit.Bytes()
		}
		out.Limits = append(out.Limits, on)
	}
	return out
}

// Named returns the users whom the policy names, and those who have a job or are exempt.
func (p *Policy) Named() []int {
	uids := Users()
	for name := range p.Users {
		if uid, err := names.uid(name); err == nil {
			uids = append(uids, uid)
		}
	}
	return sortedUsers(uids)
}
