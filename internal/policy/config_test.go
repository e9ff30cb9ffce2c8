package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/limit"
)

// Every problem is found at once, each where it is.
func TestParseProblems(t *testing.T) {
	const head = "[everybody]\nmemory = \"1g\"\n"
	for _, c := range []struct {
		text string
		want []string
	}{
		{head, nil},
		{"[everybody]\nexempt = true\n", nil},
		{"overbook = true\n[everybody]\nmemory = \"none\"\n", nil},
		{"", []string{"1:1: no [everybody]"}},
		{"[everybody]\nmemory = 1g # each\n", []string{`2:11: memory = 1g: quotes are missing (as memory = "1g")`}},
		{"missing = closed\noverbook = yes\n" + head + "projects = [a, b]\nwhen_full = \"wait\n[users.x\n", []string{`1:11: missing = closed: quotes are missing (as missing = "closed")`,
			"2:12: overbook = yes: true or false is needed", `5:13: projects = [a, b]: quotes are missing (as projects = ["a", "b"])`, "6:18: its value does not end", "7:9: "}},
		{"[everybody]\nmemory = 5\n", []string{`2:1: memory = 5: a unit and quotes are missing (as memory = "5g")`}},
		{"[everybody]\nmemory = 8\ncompute = 30\nexempt = \"no\"\ncolor = 1\n[users.anna]\nmemory = \"lots\"\n[groups]\nstaff = 3\n[users.bob]\n", []string{
			`2:1: memory = 8: a unit and quotes are missing (as memory = "8g")`, `3:1: compute = 30: a unit and quotes are missing (as compute = "30%")`,
			`4:1: exempt = "no": true or false is needed, without quotes`, "5:1: everybody.color: no such key (compute, compute_max, devices, exempt, largest, max_priority, memory, priority, projects, sleep_after, when_full)",
			`7:1: memory="lots": not a size`, "9:1: staff = 3: a section is needed (as [groups.staff], and below it memory", "10:8: users.bob: no memory"}},
		{"[everybody]\nmemory = 1g\n[users.anna\nmemory = \"lots\"\n[users.bob]\nmemory = \"more\"\n", []string{"2:11: memory = 1g: quotes are missing", "3:12: ", `4:1: memory="lots": not a size`, `6:1: memory="more": not a size`}},
		{head + "projects = [\"a\",\n[users.anna]\nmemory = \"lots\"\n[groups.staff]\nmemry = \"1g\"\n", []string{"3:1: its value does not end", `5:1: memory="lots": not a size`, "7:1: groups.staff.memry: no such key"}},
		{"[everybody]\nmemory = \"\"\"8g\n[users.anna]\nmemory = \"lots\"\n", []string{"2:1: its value does not end", `4:1: memory="lots": not a size`}},
		{head + "[users.anna]\nmemory = \"1g\"\nprojects = [\n\"a\"]\n[users.anna]\nwhen_full = \"never\"\ncolour = 1\n", []string{"7:2: table anna already exists", "8:1: users.anna: when_full = ", "9:1: users.anna.colour: no such key"}},
		{"missing = 3\neverybody = \"8g\"\n", []string{`1:1: missing = 3: text in quotes is needed (as missing = "closed")`, `2:1: everybody = "8g": a section is needed (as [everybody]`}},
		{head + "largest = true\ncompute = [1]\n[[users]]\n", []string{"3:1: largest = true: a section is needed (as [everybody.largest]", `4:1: everybody.compute: text in quotes is needed (as compute = "30%")`, "5:3: users: a section is needed"}},
		{head + "[users.max.muster]\nmemory = \"1g\"\n", []string{`3:12: users.max.muster: no such key (a name with a dot is in quotes: [users."max.muster"])`}},
		{head + "color = \"red\"\n", []string{"3:1: everybody.color: no such key"}},
		{"[everybody]\nmemory = \"lots\"\n[group.staff]\nmemory = \"1g\"\n", []string{`2:1: memory="lots": not a size`, "3:2: group: no such key"}},
		{"sleep_memory = \"lots\"\n" + head, []string{`1:1: sleep_memory = "lots": not a size`}},
		{"sleep_memory = \"200%\"\n" + head, []string{`1:1: sleep_memory = "200%": not a size, nor 0% to 100%`}},
		{"missing = \"maybe\"\n" + head, []string{`1:1: missing = "maybe": neither closed nor open`}},
		{"[everybody]\nmemory = \"none\"\n", []string{"2:1: everybody: memory without a limit can only be promised with overbook = true"}},
		{"[everybody]\nmemory = \"0=1g,others=none\"\n", []string{"2:1: everybody: memory without a limit"}},
		{"[everybody]\nmemory = \"0=1g\"\n", nil},
		{head + "[users.anna]\n", []string{"3:8: users.anna: no memory"}},
		{head + "[users.anna]\nexempt = true\nmemory = \"1g\"\n", []string{"3:8: users.anna: exempt, and a ration as well"}},
		{head + "[users.root]\nmemory = \"1g\"\n", []string{"3:8: root is never rationed"}},
		{head + "[users.\"0\"]\nmemory = \"1g\"\n", []string{"3:8: root is never rationed"}},
		{head + "[users.anna]\nmemory = \"lots\"\ncompute = \"300%\"\n", []string{`4:1: memory="lots": not a size`, `5:1: compute="300%"`}},
		{head + "[users.anna]\nmemory = \"4g\"\nlargest = { memory = \"2g\" }\n", []string{"5:13: users.anna: the largest memory, 2g, is less than what the user has, 4g"}},
		{head + "[users.anna]\nmemory = \"none\"\n[users.anna.largest]\nmemory = \"2g\"\n", []string{"4:1: users.anna: memory without", "6:1: users.anna: the largest memory"}},
		{head + "[users.anna]\nmemory = \"4g\"\ncompute_max = \"50%\"\nlargest.compute_max = \"20%\"\n", []string{"6:9: users.anna: the largest cap"}},
		{head + "[users.anna]\nmemory = \"4g\"\ncompute = \"50%\"\nlargest.compute = \"20%\"\n", []string{"6:9: users.anna: the largest share"}},
		{head + "[groups.staff]\nmemory = \"4g\"\ncompute = \"50%\"\ncompute_max = \"20%\"\n", []string{"5:1: a share of 50 %, and a cap of 20 % below it"}},
		{head + "devices = 1\n", nil},
		{head + "devices = \"all\"\n", nil},
		{"[everybody]\nmemory = \"0=1g\"\ndevices = 2\n", []string{"3:1: everybody: devices = 2, and memory gives 1 GPU only (leave devices out, or give memory of more)"}},
		{"[everybody]\nmemory = \"0=1g,1=1g\"\ndevices = 2\n", nil},
		{"[everybody]\nmemory = \"0=1g,2g\"\ndevices = 2\n", nil},
		{head + "projects = [\"bio\", \"a b\"]\n", []string{`3:1: everybody: "a b" is not the name of a project (letters, digits, and ._- between them)`}},
		{head + "devices = 0\n", []string{`3:1: devices="0": not a number of devices`}},
		{head + "devices = [1]\n", []string{`3:1: everybody.devices: a number or "all" is needed`}},
		{head + "largest.devices = 2\n", []string{"3:9: everybody.largest.devices: no such key"}},
		{head + "[users.anna]\nexempt = true\ndevices = 1\n", []string{"3:8: users.anna: exempt, and a ration as well"}},
		{head + "priority = \"low\"\nmax_priority = \"high\"\n", nil},
		{head + "priority = \"low\"\nmax_priority = \"low\"\n", nil},
		{head + "projects = [1]\n", []string{`3:1: everybody.projects: each part is text in quotes (as projects = ["vision"])`}},
		{head + "priority = \"urgent\"\nmax_priority = 1\n", []string{`3:1: priority="urgent": not a priority (use high, normal or low)`, `4:1: max_priority = 1: text in quotes is needed (as max_priority = "high")`}},
		{head + "priority = \"\"\n", []string{"3:1: priority: empty"}},
		{head + "priority = \"high\"\nmax_priority = \"normal\"\n", []string{"4:1: everybody: the highest priority, normal, is below the one that the user has, high"}},
		{head + "max_priority = \"low\"\n", []string{"3:1: everybody: the highest priority, low, is below the one that the user has, normal"}},
		{head + "largest.priority = \"high\"\n", []string{"3:9: everybody.largest.priority: no such key"}},
		{head + "[users.anna]\nexempt = true\nmax_priority = \"high\"\n", []string{"3:8: users.anna: exempt, and a ration as well"}},
		{head + head, []string{"3:2: "}},
		{"[users.a\ncompute = [1]\n" + head + strings.Repeat("\n", 6) + "[users.b\ncompute = [1]\n", []string{"1:9: ", "2:1: users.a.compute: ", "11:9: ", "12:1: users.b.compute: "}},
	} {
		_, err := Parse("f", []byte(c.text))
		var got []string
		var wrong *ConfigError
		if errors.As(err, &wrong) {
			for _, p := range wrong.Problems {
				got = append(got, fmt.Sprintf("%d:%d: %s", p.Line, p.Column, p.Text))
			}
		} else if err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
		expect.True(t, slices.EqualFunc(got, c.want, strings.HasPrefix), c.text, "\ngot", got, c.want)
	}
}

// A rule that gives nothing of GPU 0, which plain programs use, is valid, and probably a mistake.
func TestParseWarnings(t *testing.T) {
	for rule, want := range map[string]string{
		`memory = "1=8g"`: `4:1: users.anna: a program that selects no GPU uses GPU 0, of which memory = "1=8g" gives nothing, so it fails (with devices = 1 its users see 1 GPU, counted from 0)`,
		"memory = \"1=8g,2=8g\"\ndevices = \"all\"": `4:1: users.anna: a program that selects no GPU uses GPU 0, of which memory = "1=8g,2=8g" gives nothing, so it fails (with devices = 2 its users see 2 GPUs, counted from 0)`,
		"memory = \"1=8g\"\ndevices = 1":            "",
		`memory = "0=8g,1=8g"`:                      "",
		`memory = "1=8g,others=1g"`:                 "",
	} {
		p, err := Parse("f", []byte("[everybody]\nexempt = true\n[users.anna]\n"+rule+"\n"))
		expect.OK(t, err)
		var got string
		for _, w := range p.Warnings {
			got += fmt.Sprintf("%d:%d: %s", w.Line, w.Column, w.Text)
		}
		expect.Equal(t, got, want, rule)
	}
}

// All problems of a file are reported at once: of its form, of names, and of what this machine has.
func TestCheckReportsAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	expect.OK(t, os.WriteFile(file, []byte("[everybody]\nmemory = \"lots\"\n[users.there-is-no-such-user]\nmemory = \"1g\"\n[groups.there-is-no-such-group]\nmemory = \"1g\"\n"), 0o600))
	_, err := Check(file)
	var wrong *ConfigError
	expect.Must(t, errors.As(err, &wrong), err)
	var lines []int
	for _, p := range wrong.Problems {
		lines = append(lines, p.Line)
	}
	expect.True(t, slices.Equal(lines, []int{2, 3, 5}), err)
}

// What a user asked for counts for the limits that the user named. The rule sets the others, also when it changes, and those
// that the user may not have any more.
func TestRationOfAsked(t *testing.T) {
	for _, c := range []struct{ rule, asked, want string }{
		{"compute_max = \"40%\"\nlargest.memory = \"4g\"", "memory=4g", "memory=4g compute=unset compute_max=40%"},
		{"compute_max = \"30%\"\nlargest.memory = \"4g\"", "memory=4g", "memory=4g compute=unset compute_max=30%"},
		{"largest.memory = \"3g\"\nmax_priority = \"high\"", "memory=4g priority=high", "memory=2g compute=unset compute_max=unset priority=high"},
		{"largest.memory = \"4g\"", "memory=4g priority=high", "memory=4g compute=unset compute_max=unset"},
		{"largest.compute = \"50%\"\ncompute_max = \"30%\"", "compute=40%", "memory=2g compute=unset compute_max=30%"},
		{"devices = 2", "memory=1g", "memory=1g compute=unset compute_max=unset devices=2"},
		{"priority = \"low\"", "", "memory=2g compute=unset compute_max=unset priority=low"},
	} {
		p, err := Parse("f", []byte("[everybody]\nmemory = \"2g\"\n"+c.rule))
		expect.OK(t, err)
		asked, err := limit.ParseLimits(c.asked)
		expect.OK(t, err)
		expect.Equal(t, p.Everybody.ration(asked, nil).String(), c.want, c.rule, c.asked)
	}
}

// ration policy show has every key that a rule can set.
func TestRulesShowEveryKey(t *testing.T) {
	p, err := Parse("f", []byte("sleep_memory = \"30%\"\n[everybody]\nexempt = true\n[users.anna]\nmemory = \"1g\"\ncompute = \"11%\"\ncompute_max = \"12%\"\ndevices = 3\npriority = \"low\"\nmax_priority = \"high\"\nprojects = [\"vision\"]\nwhen_full = \"wait\"\nsleep_after = \"90m\"\nlargest = { memory = \"4g\" }\n"))
	expect.OK(t, err)
	text, err := json.Marshal(p.Rules())
	expect.OK(t, err)
	shown := map[string]string{"memory": `"memory":"1g"`, "compute": `"compute":"11%"`, "compute_max": `"compute_max":"12%"`, "devices": `"devices":"3"`, "priority": `"priority":"low"`, "max_priority": `"priority":"high"`,
		"projects": `"projects":["vision"]`, "when_full": `"when_full":"wait"`, "sleep_after": `"sleep_after":"1h30m"`, "largest": `"memory":"4g"`, "exempt": `"exempt":true`}
	for key := range fieldsOf(reflect.TypeFor[ruleText]()) {
		expect.True(t, shown[key] != "" && strings.Contains(string(text), shown[key]), key, "is not shown in", string(text))
	}
	expect.Equal(t, p.Memory, "30%")
}

// A user gets no more than the largest, of each.
func TestAllows(t *testing.T) {
	p, err := Parse("f", []byte(`[everybody]
memory = "2g"
compute = "20%"
compute_max = "40%"
largest = { memory = "4g", compute = "30%" }`))
	expect.OK(t, err)
	for text, want := range map[string]bool{
		"memory=4g compute=30% compute_max=40%":   true,
		"memory=1g compute=10% compute_max=20%":   true,
		"memory=0=4g,1g compute_max=40%":          true,
		"memory=5g compute_max=40%":               false,
		"memory=0=5g,1g compute_max=40%":          false,
		"memory=none compute_max=40%":             false,
		"memory=100% compute_max=40%":             false,
		"memory=4g compute=31% compute_max=40%":   false,
		"memory=4g compute=30% compute_max=41%":   false,
		"memory=4g compute=30% compute_max=unset": false,
		"compute_max=40%":                         false, // no limit
	} {
		asked, err := limit.ParseLimits(text)
		expect.OK(t, err)
		err = p.Everybody.allows(asked, nil)
		expect.Equal(t, (err == nil), want, text, err)
		again, err := limit.ParseLimits(asked.String())
		expect.True(t, err == nil && again == asked, text, "rendered as", asked.String())
	}
}

// A user takes no priority above the highest: the rule's max_priority, or else its priority, or else
// normal.
func TestAllowsPriority(t *testing.T) {
	for _, c := range []struct {
		rule    string
		highest limit.Priority
	}{
		{"", limit.PriorityNormal},
		{`priority = "low"`, limit.PriorityLow},
		{`priority = "high"`, limit.PriorityHigh},
		{`max_priority = "high"`, limit.PriorityHigh},
		{"priority = \"low\"\nmax_priority = \"normal\"", limit.PriorityNormal},
		{"priority = \"low\"\nmax_priority = \"high\"\nlargest.memory = \"4g\"", limit.PriorityHigh},
	} {
		p, err := Parse("f", []byte("[everybody]\nmemory = \"2g\"\n"+c.rule))
		expect.OK(t, err)
		for asked := limit.PriorityHigh; asked <= limit.PriorityLow; asked++ {
			want := asked >= c.highest
			l, err := limit.ParseLimits("memory=1g priority=" + asked.String())
			expect.OK(t, err)
			err = p.Everybody.allows(l, nil)
			expect.True(t, (err == nil) == want && (err == nil || errors.Is(err, ErrTooMuch)), c.rule, asked, err)
			again, err := limit.ParseLimits(l.String())
			expect.True(t, err == nil && again == l, "rendered as", l.String())
		}
		expect.Equal(t, p.Everybody.mayBeHigh(), c.highest == limit.PriorityHigh, c.rule)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "[everybody]\nmemory = \"1g\"\n", "[users]\nanna.largest.memory = \"1g\"\nanna.memory = \"1g\"\n[everybody]\nexempt = true", "users = { a = { memory = \"25%\" } }\n[[everybody]]\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("f", text)
		var wrong *ConfigError
		expect.True(t, err != nil || p != nil && p.Everybody != nil, "neither a policy nor an error")
		if errors.As(err, &wrong) {
			for _, problem := range wrong.Problems {
				expect.True(t, problem.Line >= 1 && problem.Column >= 1 && problem.Line <= 1+strings.Count(string(text), "\n"),
					"a problem at", problem.Line, problem.Column)
			}
		}
	})
}
