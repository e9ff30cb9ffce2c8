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

// Which rule is a user's depends on the machine's lists of users and groups, which may be those of a
// directory service, and that may fail. Nobody gets another rule by that: neither more than the file
// says nor, as the service comes and goes, now this and now that. So a rule that cannot be known is an
// error, and who gets it
//
//   - leaves a job that is there as it is: its user keeps what the last rule that was known says;
//   - makes no job where there is none, and says why. What becomes of that user is the operator's word:
//     missing = "closed" or "open".
//
// A service that is down is often not seen to fail: what only it knows is just not known, also to
// the C library. But a file with a name that is not known is never put in force (CheckNames). So where a
// user's rule depends on a name that was known then and is not now, it cannot be known either.

// ErrRule is returned, wrapped, where the rule for a user cannot be known.
var ErrRule = errors.New("which rule is this user's cannot be known")

// errNoGroup is returned for a name that no group has.
var errNoGroup = errors.New("no such group")

// directory is what the machine knows of users and groups. Tests have one that fails.
type directory struct {
	uid    func(user string) (int, error)      // by name or number (proc.UID)
	name   func(uid int) (string, error)       // or proc.ErrNoUser
	gid    func(group string) (string, error)  // or errNoGroup
	groups func(user string) ([]string, error) // numbers of a user's groups
}

var names = directory{proc.UID, nameOfUser, numberOfGroup, groupsOfUser}

func nameOfUser(uid int) (string, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	var unknown user.UnknownUserIdError
	if errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist) {
		return "", proc.ErrNoUser
	}
	if err != nil {
		return "", fmt.Errorf("looking up user %d: %w", uid, err)
	}
	return u.Username, nil
}

func numberOfGroup(name string) (string, error) {
	g, err := user.LookupGroup(name)
	var unknown user.UnknownGroupError
	if errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist) {
		return "", errNoGroup
	}
	if err != nil {
		return "", fmt.Errorf("looking up group %s: %w", name, err)
	}
	return g.Gid, nil
}

func groupsOfUser(name string) ([]string, error) {
	u, err := user.Lookup(name)
	var ids []string
	if err == nil {
		ids, err = u.GroupIds()
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the groups of %s: %w", name, err)
	}
	return ids, nil
}

// For returns the rule for a user: the user's own, that of the first of the user's groups in the
// file, or everybody's. Root has none, and the agent is exempt. The error, where it cannot be known, is ErrRule.
func (p *Policy) For(uid int) (*Rule, error) {
	if uid == 0 {
		return nil, nil
	}
	if agents, is := agentUser(); is && agents == uid {
		return agentRule, nil
	}
	if len(p.Users)+len(p.Groups) == 0 {
		return p.Everybody, nil // nothing is asked of a service that nothing depends on
	}
	rule, err := p.ofNames(uid)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRule, err)
	}
	return cmp.Or(rule, p.Everybody), nil
}

// agentRule is the rule of the user as whom root's agent reads: the driver must tell it of the whole machine, as
// it tells root.
var agentRule = &Rule{Source: "the agent", Exempt: true}

// agentUser returns that user, if there is one. Tests have another.
var agentUser = func() (uid int, is bool) {
	number, _, err := proc.LocalUser(job.AgentUser)
	return int(number), err == nil
}

// ofNames returns the rule by a user's name, number or group, or nil.
func (p *Policy) ofNames(uid int) (*Rule, error) {
	name, err := names.name(uid)
	if errors.Is(err, proc.ErrNoUser) {
		return p.ofUnknown(uid)
	}
	if err != nil {
		return nil, err
	}
	if rule := p.Users[name]; rule != nil {
		return rule, nil
	}
	number := strconv.Itoa(uid)
	if rule := p.Users[number]; rule != nil {
		if other, err := names.uid(number); err != nil || other == uid { // or it is the name of another
			return rule, err
		}
	}
	return p.ofGroups(name)
}

// ofUnknown returns the rule of a user without a name. It is not known whether this is one whom the
// file names, unless each of those is known to be another.
func (p *Policy) ofUnknown(uid int) (rule *Rule, err error) {
	for _, name := range slices.Sorted(maps.Keys(p.Users)) {
		switch named, missing := names.uid(name); {
		case missing != nil:
			err = cmp.Or(err, fmt.Errorf("users.%s: %w", name, missing))
		case named == uid:
			return p.Users[name], nil
		}
	}
	for _, rule := range p.sortedGroups() {
		if _, missing := names.gid(rule.name()); missing != nil {
			err = cmp.Or(err, fmt.Errorf("%s: %w", rule.Source, missing))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %d has no name, and %w (does the directory service answer?)", uid, err)
	}
	return nil, nil
}

// ofGroups returns the rule of the first of a user's groups in the file, or nil.
func (p *Policy) ofGroups(name string) (*Rule, error) {
	if len(p.Groups) == 0 {
		return nil, nil
	}
	ids, err := names.groups(name)
	if err != nil {
		return nil, err
	}
	for _, rule := range p.sortedGroups() {
		id, err := names.gid(rule.name())
		if err != nil { // of those after it none counts if the user is in this one
			return nil, fmt.Errorf("%s: %w (does the directory service answer? if the group is gone, take it out of %s)", rule.Source, err, ConfigFile)
		}
		if slices.Contains(ids, id) {
			return rule, nil
		}
	}
	return nil, nil
}

// name returns the user or group of a rule.
func (rule *Rule) name() string {
	_, name, _ := strings.Cut(rule.Source, ".")
	return name
}

// sortedGroups returns the rules of groups as they are in the file.
func (p *Policy) sortedGroups() []*Rule {
	return slices.SortedFunc(maps.Values(p.Groups), func(a, b *Rule) int { return a.line - b.line })
}
