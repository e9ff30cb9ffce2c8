package policy

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"testing"

	"ration/check/expect"
	"ration/internal/proc"
)

// A user's own rule comes before a group's, the first group before the second, and everybody's
// last; root has none.
func TestFor(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	ids, err := nobody.GroupIds()
	if err != nil || len(ids) == 0 {
		t.Skip(err)
	}
	group, err := user.LookupGroupId(ids[0])
	if err != nil {
		t.Skip(err)
	}
	uid, err := proc.UID("nobody")
	expect.OK(t, err)
	everybody, ofGroup := "[everybody]\nmemory = \"1g\"\n", "[groups."+group.Name+"]\nmemory = \"2g\"\n"
	for _, c := range []struct{ text, want string }{
		{everybody, "everybody"},
		{everybody + ofGroup, "groups." + group.Name},
		{everybody + ofGroup + "[users.nobody]\nmemory = \"3g\"\n", "users.nobody"},
		{everybody + ofGroup + fmt.Sprintf("[users.%d]\nmemory = \"3g\"\n", uid), fmt.Sprintf("users.%d", uid)},
	} {
		p := parsed(t, c.text)
		got, err := p.For(uid)
		expect.True(t, err == nil && got != nil && got.Source == c.want, got, err, c.want)
		got, err = p.For(0)
		expect.True(t, err == nil && got == nil, "root has a rule")
	}
}

// The agent's user is exempt, whatever the file says: it is told of the whole machine.
func TestForAgent(t *testing.T) {
	defer func(was func() (int, bool)) { agentUser = was }(agentUser)
	agentUser = func() (int, bool) { return 65533, true }
	for _, text := range []string{"[everybody]\nmemory = \"1g\"\n", "[everybody]\nmemory = \"1g\"\n[users.65533]\nmemory = \"3g\"\n"} {
		p := parsed(t, text)
		got, err := p.For(65533)
		expect.True(t, err == nil && got != nil && got.Exempt, got, err)
		got, err = p.For(65532)
		expect.True(t, err == nil && got != nil && !got.Exempt, "another user", got, err)
	}
}

func parsed(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("f", []byte(text))
	expect.OK(t, err)
	return p
}

// errService is of a directory service that fails.
var errService = errors.New("the service is gone")

// lists are the users and groups of a machine, of which some look-ups fail.
type lists struct {
	users  map[string]int      // number by name
	groups map[string][]string // members by name
	fails  []string            // names, or numbers, that cannot be looked up
}

func (l lists) use(t *testing.T) {
	real := names
	t.Cleanup(func() { names = real })
	fails := func(name string) error {
		if slices.Contains(l.fails, name) {
			return errService
		}
		return nil
	}
	names = directory{
		uid: func(name string) (int, error) {
			if uid, is := l.users[name]; is || fails(name) != nil {
				return uid, fails(name)
			}
			if uid, err := strconv.Atoi(name); err == nil {
				return uid, nil
			}
			return 0, proc.ErrNoUser
		},
		name: func(uid int) (string, error) {
			for name, number := range l.users {
				if number == uid {
					return name, fails(strconv.Itoa(uid))
				}
			}
			return "", errors.Join(fails(strconv.Itoa(uid)), proc.ErrNoUser)
		},
		gid: func(name string) (string, error) {
			if _, is := l.groups[name]; !is && fails(name) == nil {
				return "", errNoGroup
			}
			return "g" + name, fails(name)
		},
		groups: func(user string) (out []string, err error) {
			for name, members := range l.groups {
				if slices.Contains(members, user) {
					out = append(out, "g"+name)
				}
			}
			return out, fails("of " + user)
		},
	}
}

// A user whose rule depends on a name that cannot be looked up has none: neither everybody's nor that
// of a later group. One whose rule does not depend on it has it.
func TestForWithoutService(t *testing.T) {
	const text = `[everybody]
memory = "1g"
[groups.students]
memory = "2g"
[groups.staff]
memory = "9g"
[users.anna]
memory = "3g"
`
	all := lists{users: map[string]int{"anna": 1, "ben": 2, "carl": 3}, groups: map[string][]string{"students": {"ben"}, "staff": {"carl"}}}
	without := func(group string) lists {
		l := lists{users: all.users, groups: map[string][]string{}}
		for name, members := range all.groups {
			if name != group {
				l.groups[name] = members
			}
		}
		return l
	}
	failing := func(names ...string) lists { return lists{all.users, all.groups, names} }
	for _, c := range []struct {
		what  string
		lists lists
		uid   int
		want  string // empty where it cannot be known
	}{
		{"all is known", all, 1, "users.anna"},
		{"all is known", all, 2, "groups.students"},
		{"all is known", all, 3, "groups.staff"},
		{"all is known", all, 4, "everybody"},
		{"the first group fails", failing("students"), 1, "users.anna"},
		{"the first group fails", failing("students"), 2, ""},
		{"the first group fails", failing("students"), 3, ""},
		{"the first group fails", failing("students"), 4, ""},
		{"the second group fails", failing("staff"), 2, "groups.students"},
		{"the second group fails", failing("staff"), 3, ""},
		{"the first group is not known any more", without("students"), 1, "users.anna"},
		{"the first group is not known any more", without("students"), 2, ""},
		{"the second group is not known any more", without("staff"), 2, "groups.students"},
		{"the second group is not known any more", without("staff"), 4, ""},
		{"a user's groups fail", failing("of ben"), 2, ""},
		{"a user's groups fail", failing("of ben"), 3, "groups.staff"},
		{"a user fails", failing("1"), 1, ""},
		{"another user's name fails", failing("anna"), 2, "groups.students"},
		{"a name of the file fails", failing("anna"), 4, ""},
		{"no users are known", lists{groups: all.groups}, 1, ""},
		{"no users are known", lists{groups: all.groups}, 4, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			c.lists.use(t)
			rule, err := parsed(t, text).For(c.uid)
			if got := ""; c.want == "" && !errors.Is(err, ErrRule) || c.want != "" && (err != nil || rule.Source != c.want) {
				if rule != nil {
					got = rule.Source
				}
				t.Errorf("user %d has %q, %v, want %q", c.uid, got, err, c.want)
			}
		})
	}
	failing("1", "2", "anna", "students").use(t)
	rule, err := parsed(t, "[everybody]\nmemory = \"1g\"\n").For(1)
	expect.True(t, err == nil && rule.Source == "everybody", "a policy that names nobody depends on names", err)
	err = parsed(t, text).CheckNames("f")
	expect.True(t, err != nil && errors.As(err, new(*ConfigError)), "names that cannot be looked up", err)
}

// A number that is the name of another user is that user, and not the one of that number.
func TestForNumberThatIsName(t *testing.T) {
	const text = "[everybody]\nmemory = \"1g\"\n[users.7]\nmemory = \"2g\"\n"
	lists{users: map[string]int{"anna": 7, "7": 8}}.use(t)
	for uid, want := range map[int]string{7: "everybody", 8: "users.7"} {
		rule, err := parsed(t, text).For(uid)
		expect.True(t, err == nil && rule.Source == want, "user", uid, "has", rule, err, want)
	}
	lists{users: map[string]int{"anna": 7}}.use(t)
	rule, err := parsed(t, text).For(7)
	expect.True(t, err == nil && rule.Source == "users.7", "user 7 has", rule, err)
	lists{users: map[string]int{"anna": 7}, fails: []string{"7"}}.use(t)
	rule, err = parsed(t, text).For(7)
	expect.True(t, errors.Is(err, ErrRule), "user 7 has", rule, err)
}

// A name with a dot is that name, without the quotes that the file needs.
func TestForNameWithDot(t *testing.T) {
	const text = "[everybody]\nmemory = \"1g\"\n[groups.\"lab.one\"]\nmemory = \"2g\"\n[users.\"carl.c\"]\nmemory = \"3g\"\n"
	lists{users: map[string]int{"anna": 1, "ben": 2, "carl.c": 3}, groups: map[string][]string{"lab.one": {"anna"}}}.use(t)
	p := parsed(t, text)
	expect.OK(t, p.CheckNames("f"))
	for uid, want := range map[int]string{1: `groups."lab.one"`, 2: "everybody", 3: `users."carl.c"`, 4: "everybody"} {
		rule, err := p.For(uid)
		expect.True(t, err == nil && rule.Source == want, "user", uid, "has", rule, err, want)
	}
}

// Of two rules of one user only one counts: the other is a problem, at its line.
func TestTwoRulesOfOneUser(t *testing.T) {
	const text = "[everybody]\nmemory = \"1g\"\n[users.7]\nmemory = \"2g\"\n[users.anna]\nmemory = \"3g\"\n"
	lists{users: map[string]int{"anna": 7}}.use(t)
	err := parsed(t, text).CheckNames("f")
	expect.True(t, err != nil && err.Error() == "f:3:8: users.7: this is the user of users.anna, and only that rule counts (leave one of them out)", err)
	lists{users: map[string]int{"anna": 8}}.use(t)
	expect.OK(t, parsed(t, text).CheckNames("f"))
}

// The fewest users are removed, and none if all of them are not enough.
func TestFewest(t *testing.T) {
	has := map[int]int{1: 30, 2: 10, 3: 50}
	for _, c := range []struct {
		free, need int
		want       []int
		err        error
	}{
		{0, 91, nil, ErrOverbooked},
		{0, 90, []int{1, 2, 3}, nil},
		{0, 60, []int{2, 3}, nil},
		{0, 50, []int{3}, nil},
		{45, 90, []int{3}, nil},
	} {
		removed, err := fewest([]int{1, 2, 3}, func(without []int) error {
			free := c.free
			for _, uid := range without {
				free += has[uid]
			}
			if free < c.need {
				return ErrOverbooked
			}
			return nil
		})
		expect.True(t, slices.Equal(removed, c.want) && errors.Is(err, c.err), c.need, "of", c.free, removed, "are removed", err, c.want)
	}
}
