package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"ration/internal/job"
	"ration/internal/proc"
)

// The rule of a user depends on the machine's lists of users and groups, which a directory service
// may provide. The service may fail. A failure must not change a user's rule: neither to a larger
// ration, nor back and forth as the service fails and recovers. So if the rule of a user is
// unknown, that is an error, and:
//
//   - a job that exists keeps the limits of the last known rule;
//   - no job is made for a user without one. The operator decides whether CUDA is refused to that
//     user: missing = "closed" or "open".
//
// A service that is down often looks like a service that does not know a name. But a file with
// unknown names is never put in force (CheckNames). So if a name in the file is unknown now, the
// rules that depend on it are unknown too.

// ErrRule is returned, wrapped, if the rule of a user is unknown.
var ErrRule = errors.New("the rule of this user is unknown")

// errNoGroup is returned for a name that no group has.
var errNoGroup = errors.New("no such group")

// directory looks up users and groups. Tests replace it with one that fails.
type directory struct {
	uid    func(user string) (int, error)      // by name or number (proc.UID)
	name   func(uid int) (string, error)       // or proc.ErrNoUser
	gid    func(group string) (string, error)  // or errNoGroup
	groups func(user string) ([]string, error) // the numbers of a user's groups
}

var names = directory{proc.UID, userName, groupID, groupIDs}

func userName(uid int) (string, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	var unknown user.UnknownUserIdError
	switch {
	case errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist):
		return "", proc.ErrNoUser
	case err != nil:
		return "", fmt.Errorf("looking up user %d: %w", uid, err)
	}
	return u.Username, nil
}

func groupID(name string) (string, error) {
	g, err := user.LookupGroup(name)
	var unknown user.UnknownGroupError
	switch {
	case errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist):
		return "", errNoGroup
	case err != nil:
		return "", fmt.Errorf("looking up group %s: %w", name, err)
	}
	return g.Gid, nil
}

func groupIDs(name string) (ids []string, err error) {
	u, err := user.Lookup(name)
	if err == nil {
		ids, err = u.GroupIds()
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the groups of %s: %w", name, err)
	}
	return ids, nil
}

// For returns the rule of a user: the user's own, that of the first group in the file which the user is
// in, or everybody's. Root has none, and the agent's user is exempt. The error is ErrRule.
func (p *Policy) For(uid int) (*Rule, error) {
	if uid == 0 {
		return nil, nil
	}
	if agent, is := agentUser(); is && agent == uid {
		return agentRule, nil
	}
	if len(p.Users)+len(p.Groups) == 0 {
		return p.Everybody, nil // this avoids a look-up that may fail
	}
	rule, err := p.ruleByName(uid)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRule, err)
	}
	return cmp.Or(rule, p.Everybody), nil
}

// CheckNames returns an error for users and groups that this machine does not know.
func (p *Policy) CheckNames(file string) error {
	r := &reader{file: file, at: p.at}
	check := func(kind, name string, err error) {
		if errors.Is(err, proc.ErrNoUser) || errors.Is(err, errNoGroup) {
			err = fmt.Errorf("no such %s on this machine", strings.TrimSuffix(kind, "s"))
		}
		if err != nil {
			r.problem(kind+"\x00"+name, "%s.%s: %v", kind, name, err)
		}
	}
	of := map[int][]string{}
	for name := range p.Users {
		uid, err := names.uid(name)
		if check("users", name, err); err == nil {
			of[uid] = append(of[uid], name)
		}
	}
	for uid, all := range of {
		applies, err := p.ruleByName(uid)
		for _, name := range all {
			if err == nil && applies != nil && applies != p.Users[name] {
				r.problem("users\x00"+name, "users.%s: this is the user of %s, and only that rule counts (leave one of them out)", name, applies.Source)
			}
		}
	}
	for name := range p.Groups {
		_, err := names.gid(name)
		check("groups", name, err)
	}
	return r.err()
}

// agentRule is the rule of the user that root's agent reads as. The driver must show this user the whole
// machine, as it does to root.
var agentRule = &Rule{Source: "the agent", Exempt: true}

// agentUser returns the UID of the user that root's agent reads as. is is false if this machine has
// no such user. Tests replace agentUser.
var agentUser = func() (uid int, is bool) {
	number, _, err := proc.LocalUser(job.AgentUser)
	return int(number), err == nil
}

// ruleByName returns the rule by a user's name, number or group, or nil.
func (p *Policy) ruleByName(uid int) (*Rule, error) {
	name, err := names.name(uid)
	if errors.Is(err, proc.ErrNoUser) {
		return p.ruleWithoutName(uid)
	}
	if err != nil {
		return nil, err
	}
	if rule := p.Users[name]; rule != nil {
		return rule, nil
	}
	number := strconv.Itoa(uid)
	if rule := p.Users[number]; rule != nil {
		if other, err := names.uid(number); err != nil || other == uid { // a number may also be another user's name
			return rule, err
		}
	}
	return p.ruleByGroup(name)
}

// ruleWithoutName returns the rule of a user whose name is unknown. The user may be any of the
// users in the file, unless the look-up of each name returns another UID.
func (p *Policy) ruleWithoutName(uid int) (rule *Rule, err error) {
	for _, name := range slices.Sorted(maps.Keys(p.Users)) {
		switch named, missing := names.uid(name); {
		case missing != nil:
			err = cmp.Or(err, fmt.Errorf("users.%s: %w", name, missing))
		case named == uid:
			return p.Users[name], nil
		}
	}
	for _, rule := range byLine(p.Groups) {
		if _, missing := names.gid(rule.name()); missing != nil {
			err = cmp.Or(err, fmt.Errorf("%s: %w", rule.Source, missing))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %d has no name, and %w (does the directory service answer?)", uid, err)
	}
	return nil, nil
}

// ruleByGroup returns the rule of the first group in the file that a user is in, or nil.
func (p *Policy) ruleByGroup(name string) (*Rule, error) {
	if len(p.Groups) == 0 {
		return nil, nil
	}
	ids, err := names.groups(name)
	if err != nil {
		return nil, err
	}
	for _, rule := range byLine(p.Groups) {
		id, err := names.gid(rule.name())
		if err != nil { // a later group does not apply if the user is in this one
			return nil, fmt.Errorf("%s: %w (does the directory service answer? if the group is gone, take it out of %s)", rule.Source, err, ConfigFile)
		}
		if slices.Contains(ids, id) {
			return rule, nil
		}
	}
	return nil, nil
}

// name returns the user or group of a rule. Source has quotes around a name with a dot.
func (rule *Rule) name() string {
	_, name, _ := strings.Cut(rule.path, "\x00")
	return name
}

// byLine returns rules in the order of the file.
func byLine(rules map[string]*Rule) []*Rule {
	return slices.SortedFunc(maps.Values(rules), func(a, b *Rule) int { return a.line - b.line })
}

// checkSubordinate refuses a job to a UID of /etc/subuid. A user has thousands of them for containers,
// and each would be a ration of its own.
func checkSubordinate(uid int) error {
	if owner, is := proc.SubUIDOwner(uid); is {
		return fmt.Errorf("user %d is a subordinate of %s (/etc/subuid), and has no ration of its own (give the container a job: ration cdi)", uid, owner)
	}
	return nil
}
