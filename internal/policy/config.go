// Package policy gives every user of a machine a ration, by a file that the operator writes. It holds for
// every program of a user. docs/shared-server.md is for operators, and
// docs/adr/0013-one-job-for-each-user.md gives the reasons.
//
//	/etc/ration/config.toml        the operator's file
//	/etc/ration/in-force.toml      the policy in force: a copy of the last valid file
//	/etc/ld.so.preload             names the library, for every program
//	/run/ration/user-UID           the job of a user; a standing job of root's (package launch)
//	/run/ration/high-priority/UID  a user that may have high priority
//	/run/ration/policy.sock        where the service makes the job of a user without one (Keep)
//
// The library decides by these paths and by the UID that the kernel has for the process: shim/userjob.c.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2/unstable"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/sleep"
)

// Paths of the operator's files.
const (
	Folder      = "/etc/ration"
	ConfigFile  = Folder + "/config.toml"
	InForceFile = launch.InForceFile
)

// Values of missing: how programs start if no job can be made for their user.
const (
	MissingClosed = "closed" // CUDA is refused
	MissingOpen   = "open"   // nothing is limited
)

// Values of when_full: what happens to a user's programs while there is no room for the ration.
const (
	WhenFullRefuse = "refuse" // CUDA is refused
	WhenFullWait   = "wait"   // they wait until there is room
)

// leastSleepAfter is the shortest sleep_after.
const leastSleepAfter = time.Second

// Rule is the ration of a user, of each user of a group, or of everybody else.
type Rule struct {
	Source  string // users.anna, users."anna.b", groups.students or everybody, as in the file
	Exempt  bool   // no job, no limit
	Default limit.Limits
	Largest limit.Limits // the most that the user may ask for; equal to Default if the file sets none
	// Projects are the projects that the user's jobs may be accounted to; if it is empty, what the user says is a claim.
	Projects []string
	Waits    bool // with no room for the ration, the user's programs wait
	// SleepAfter is for how long the user's jobs do nothing on their devices before they fall asleep; 0 if they do not.
	SleepAfter time.Duration

	path   string // of the rule in the file, with a NUL between names
	line   int    // line where the rule begins: the first of a user's groups applies
	broken bool   // the rule has a problem
}

// Policy is a valid configuration.
type Policy struct {
	Overbook  bool   // rations may add up to more than a device has
	Missing   string // MissingClosed or MissingOpen
	Memory    string // sleep_memory: how much host memory the sleeping jobs of a user may take; empty if the file does not say
	Users     map[string]*Rule
	Groups    map[string]*Rule
	Everybody *Rule
	Text      []byte    // text of the file, without its [[notify]] sections
	NoDriver  bool      // Check found no driver, and has not compared the rations with the devices
	Warnings  []Problem // parts of a valid file that are probably a mistake

	at map[string]unstable.Position // as in reader
}

// Problem is an error in the file.
type Problem struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"`
}

// ConfigError lists all problems of a file.
type ConfigError struct {
	File     string
	Problems []Problem
}

func (e *ConfigError) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns an error for each problem.
func (e *ConfigError) Unwrap() (all []error) {
	for _, p := range e.Problems {
		all = append(all, fmt.Errorf("%s:%d:%d: %s", e.File, p.Line, p.Column, p.Text))
	}
	return all
}

// Read reads and checks a file.
func Read(file string) (*Policy, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s (ration policy --help shows what to write into it)", file)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	return Parse(file, text)
}

// maxConfig bounds the size of the file, in bytes.
const maxConfig = 1 << 20

// Parse checks the text of a file and reports all problems, not only the first. file is for
// messages. Parse does not look up users and groups; CheckNames does. With problems it returns what it could read.
func Parse(file string, text []byte) (*Policy, error) {
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s: %d bytes (a policy has at most %d)", file, len(text), maxConfig)
	}
	r := newReader(file)
	c := r.decode(text)
	r.notifyRules(c.Notify)
	p := &Policy{Overbook: c.Overbook, Missing: MissingClosed, Users: map[string]*Rule{}, Groups: map[string]*Rule{}, Text: withoutNotify(text)}
	if c.Missing != nil {
		if p.Missing = *c.Missing; p.Missing != MissingClosed && p.Missing != MissingOpen {
			r.problem("missing", "missing = %q: neither closed nor open", p.Missing)
		}
	}
	if c.Memory != nil {
		p.Memory = *c.Memory
		if _, err := sleep.ParseBound(*c.Memory, 0); err != nil {
			r.problem("sleep_memory", "sleep_memory = %q: %s (as \"100g\", or \"50%%\" of the host's memory)", *c.Memory, strings.TrimPrefix(err.Error(), strconv.Quote(*c.Memory)+": "))
		}
	}
	p.at = r.at
	for name, rule := range c.Users {
		checked := r.rule("users", name, rule, p.Overbook)
		if r.sections[name] == "" {
			p.Users[name] = checked
		}
	}
	for name, rule := range c.Groups {
		p.Groups[name] = r.rule("groups", name, rule, p.Overbook)
	}
	if c.Everybody == nil && !r.incomplete[""] && len(r.wrong) == 0 {
		r.problem("", "no [everybody]: it is for the users that no other rule names (memory = \"8g\", or exempt = true for no limit)")
	} else if c.Everybody != nil {
		p.Everybody = r.rule("", "everybody", c.Everybody, p.Overbook)
	}
	for _, name := range []string{"root", "0"} {
		if p.Users[name] != nil {
			r.problem("users\x00"+name, "root is never rationed (leave it out)")
		}
	}
	p.Warnings = r.warnings
	return p, r.err()
}

// reader collects the problems of a file.
type reader struct {
	file       string
	at         map[string]unstable.Position // position of each key, by its path: names joined with zero bytes
	wrong      map[int]bool                 // lines that are not TOML; nothing else is said of them
	sections   map[string]string            // names of users that stand for sections whose first line is wrong, with its text
	incomplete map[string]bool              // tables of which a part was taken out, by path
	problems   []Problem
	warnings   []Problem
}

func newReader(file string) *reader {
	return &reader{file: file, at: map[string]unstable.Position{}, incomplete: map[string]bool{}, sections: map[string]string{}}
}

func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	e := &ConfigError{r.file, r.problems}
	e.sort()
	return e
}

func (e *ConfigError) sort() {
	slices.SortFunc(e.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Text, b.Text))
	})
}

func (r *reader) problem(path, format string, args ...any) {
	at := r.position(path)
	if r.wrong[at.Line] {
		return
	}
	text := fmt.Sprintf(format, args...)
	for name, section := range r.sections {
		text = strings.ReplaceAll(text, "users."+name, section)
	}
	r.problems = append(r.problems, Problem{at.Line, at.Column, text})
}

// position returns the position of a key, or of the nearest key that contains it.
func (r *reader) position(path string) unstable.Position {
	for path != "" {
		if at, is := r.at[path]; is {
			return at
		}
		path = path[:max(strings.LastIndexByte(path, '\x00'), 0)]
	}
	return unstable.Position{Line: 1, Column: 1}
}

// locate finds the position of each key. The text must be valid TOML.
func (r *reader) locate(text []byte) {
	var p unstable.Parser
	p.Reset(text)
	var table string
	lists := map[string]int{} // number of sections of each list so far
	note := func(prefix string, n *unstable.Node) string {
		path := prefix
		for it := n.Key(); it.Next(); {
			key := it.Node()
			if path != "" {
				path += "\x00"
			}
			path += string(key.Data)
			if _, is := r.at[path]; !is {
				r.at[path] = p.Shape(key.Raw).Start
			}
		}
		return path
	}
	var values func(prefix string, n *unstable.Node)
	values = func(prefix string, n *unstable.Node) {
		path := note(prefix, n)
		if v := n.Value(); v.Kind == unstable.InlineTable {
			for it := v.Children(); it.Next(); {
				values(path, it.Node())
			}
		}
	}
	for p.NextExpression() {
		switch n := p.Expression(); n.Kind {
		case unstable.Table:
			table = note("", n)
		case unstable.ArrayTable:
			list := note("", n)
			table = join(list, index(lists[list]))
			lists[list]++
			key := n.Key()
			key.Next()
			r.at[table] = p.Shape(key.Node().Raw).Start
		case unstable.KeyValue:
			values(table, n)
		}
	}
}

// rule checks a rule.
func (r *reader) rule(kind, name string, t *ruleText, overbook bool) *Rule {
	path, source := name, name
	if kind != "" {
		path, source = kind+"\x00"+name, kind+"."+name
		if strings.Contains(name, ".") {
			source = fmt.Sprintf("%s.%q", kind, name)
		}
	}
	out, known := &Rule{Source: source, path: path, Exempt: t.Exempt, line: r.position(path).Line}, len(r.problems)
	defer func() { out.broken = len(r.problems) > known || r.incomplete[path] || r.wrong[out.line] }()
	out.Default = r.ration(path, t.rationText)
	if t.Devices != nil {
		var err error
		if out.Default.Devices, err = limit.ParseDevices("devices", fmt.Sprint(t.Devices)); err != nil {
			r.problem(path+"\x00devices", "%v", err)
		}
	}
	r.checkNamedDevices(path, source, out.Default)
	out.Default.Priority = r.priority(path, "priority", t.Priority)
	out.Largest = out.Default
	switch {
	case t.Exempt && (t.rationText != rationText{} || t.Devices != nil || t.Priority != nil || t.MaxPriority != nil || t.Largest != nil || t.Projects != nil || t.WhenFull != nil || t.SleepAfter != nil):
		r.problem(path, "%s: exempt, and a ration as well (leave one of them out)", source)
	case t.Exempt:
	case t.Memory == nil && r.incomplete[path]:
	case t.Memory == nil:
		r.problem(path, "%s: no memory (as memory = \"10g\"; \"none\" counts and limits nothing; exempt = true for no job at all)", source)
	case !overbook && out.Default.Memory.IsSet() && unlimited(out.Default.Memory):
		r.problem(path+"\x00memory", "%s: memory without a limit can only be promised with overbook = true", source)
	}
	if t.Largest != nil {
		inside := path + "\x00largest"
		out.Largest = r.ration(inside, *t.Largest).Or(out.Default)
		for _, e := range excesses(out.Default, out.Largest, nil) {
			if e.key == "memory" && !out.Default.Memory.IsSet() {
				continue // what the user has is not known
			}
			r.problem(inside+"\x00"+e.key, "%s: the largest %s, %s, is less than what the user has, %s", source, e.name, e.most, e.has)
		}
	}
	out.Projects = t.Projects
	for _, project := range t.Projects {
		if _, err := job.ParseLabels([]string{job.Project + "=" + project}); err != nil || project == "" || launch.CheckProject(project) != nil {
			r.problem(path+"\x00projects", "%s: %q is not the name of a project (letters, digits, and ._- between them)", source, project)
		}
	}
	if t.SleepAfter != nil {
		var err error
		if out.SleepAfter, err = time.ParseDuration(*t.SleepAfter); err != nil || out.SleepAfter < leastSleepAfter {
			r.problem(path+"\x00sleep_after", "%s: sleep_after = %q: not a time of %v or more (as \"30m\")", source, *t.SleepAfter, leastSleepAfter)
		}
	}
	if t.WhenFull != nil {
		if out.Waits = *t.WhenFull == WhenFullWait; !out.Waits && *t.WhenFull != WhenFullRefuse {
			r.problem(path+"\x00when_full", "%s: when_full = %q: neither wait nor refuse", source, *t.WhenFull)
		}
	}
	out.Largest.Priority = cmp.Or(r.priority(path, "max_priority", t.MaxPriority), out.Default.Priority)
	if out.Default.Priority.Above(out.Largest.Priority) {
		r.problem(path+"\x00max_priority", "%s: the highest priority, %s, is below the one that the user has, %s", source, out.Largest.Priority, cmp.Or(out.Default.Priority, limit.PriorityNormal))
	}
	return out
}

// checkNamedDevices checks how a rule that gives memory of single devices goes together with its number of devices.
func (r *reader) checkNamedDevices(path, source string, l limit.Limits) {
	if !l.Memory.OnlyNamed() {
		return
	}
	named := 0
	for d := range limit.MaxDevices {
		if l.Memory.For(d).IsSet() {
			named++
		}
	}
	given := humanfmt.Plural(named, "GPU", "GPUs")
	switch {
	case l.Devices != limit.AllDevices && int(l.Devices) > named:
		r.problem(path+"\x00devices", "%s: devices = %d, and memory gives %s only (leave devices out, or give memory of more)", source, int(l.Devices), given)
	case (!l.Devices.IsSet() || l.Devices == limit.AllDevices) && !l.Memory.For(0).IsSet():
		at := r.position(path + "\x00memory")
		r.warnings = append(r.warnings, Problem{at.Line, at.Column, fmt.Sprintf(
			"%s: a program that selects no GPU uses GPU 0, of which memory = %q gives nothing, so it fails (with devices = %d its users see %s, counted from 0)", source, l.Memory, named, given)})
	}
}

// priority returns the priority that a key of a rule sets; 0 if the rule does not have the key.
func (r *reader) priority(path, key string, value *string) limit.Priority {
	if value == nil {
		return 0
	}
	p, err := limit.ParsePriority(key, *value)
	if err == nil && p == 0 {
		err = fmt.Errorf("%s: empty (high, normal or low)", key)
	}
	if err != nil {
		r.problem(path+"\x00"+key, "%v", err)
	}
	return p
}

func (r *reader) ration(path string, t rationText) (out limit.Limits) {
	parse := func(key string, value *string, set func(string) error) {
		if value == nil {
			return
		}
		if err := set(*value); err != nil {
			r.problem(path+"\x00"+key, "%v", err)
		}
	}
	parse("memory", t.Memory, func(v string) (err error) {
		if out.Memory, err = limit.ParseMemorySet("memory", v); err != nil {
			return err
		}
		for d := range limit.MaxDevices {
			size, _ := out.Memory.For(d).Of(0)
			if err := limit.CheckLeast(size, "memory", v); err != nil {
				return err
			}
		}
		return nil
	})
	parse("compute", t.Compute, func(v string) (err error) {
		out.Compute, err = limit.ParseComputeSet("compute", v)
		return err
	})
	parse("compute_max", t.ComputeMax, func(v string) (err error) {
		out.ComputeMax, err = limit.ParseComputeSet("compute_max", v)
		return err
	})
	if err := checkShares(out); err != nil {
		r.problem(path+"\x00compute", "%v", err)
	}
	return out
}

// checkShares returns an error for a share above the cap of the same device.
func checkShares(l limit.Limits) error {
	for d := range limit.MaxDevices {
		if share, most := l.Compute.For(d).Percent(), l.ComputeMax.For(d).Percent(); most != 0 && share > most {
			return fmt.Errorf("a share of %d %%, and a cap of %d %% below it", share, most)
		}
	}
	return nil
}

// unlimited reports whether a device has no limit.
func unlimited(m limit.Set[limit.Memory]) bool {
	for d := range limit.MaxDevices {
		if !m.For(d).IsSet() && m.OnlyNamed() {
			continue // the device cannot be used
		}
		if size, err := m.For(d).Of(0); err == nil && size == 0 {
			return true
		}
	}
	return false
}

// excess is a part of a ration that exceeds the allowed one.
type excess struct{ key, name, has, most string }

// excesses compares a ration with the largest allowed one. totals are the sizes of the devices, if
// known.
func excesses(has, most limit.Limits, totals []limit.Size) (out []excess) {
	if moreMemory(has.Memory, most.Memory, totals) {
		out = append(out, excess{"memory", "memory", has.Memory.Words(), most.Memory.Words()})
	}
	if moreCompute(has.Compute, most.Compute, false) {
		out = append(out, excess{"compute", "share", has.Compute.String(), most.Compute.String()})
	}
	if moreCompute(has.ComputeMax, most.ComputeMax, true) {
		out = append(out, excess{"compute_max", "cap", has.ComputeMax.String(), most.ComputeMax.String()})
	}
	return out
}

// typicalTotal is the assumed size of an unknown device when a percentage is compared with a size.
const typicalTotal = limit.Size(80) << 30

// moreMemory reports whether a is more than b on any device. An unset limit is no limit, unless the set names
// other devices: then it is nothing.
func moreMemory(a, b limit.Set[limit.Memory], totals []limit.Size) bool {
	for d := range limit.MaxDevices {
		total := typicalTotal
		if d < len(totals) {
			total = totals[d]
		} else if len(totals) > 0 {
			break // there is no such device
		}
		if a.OnlyNamed() && !a.For(d).IsSet() {
			continue // nothing of this device
		}
		if b.OnlyNamed() && !b.For(d).IsSet() {
			return true
		}
		x, err1 := a.For(d).Of(total)
		y, err2 := b.For(d).Of(total)
		if err1 != nil || err2 != nil || y != 0 && (x == 0 || x > y) {
			return true
		}
	}
	return false
}

// moreCompute reports whether a is more than b on any device. Unset is no share, or with caps no cap.
func moreCompute(a, b limit.Set[limit.Compute], caps bool) bool {
	for d := range limit.MaxDevices {
		x, y := a.For(d).Percent(), b.For(d).Percent()
		if caps && y != 0 && (x == 0 || x > y) || !caps && x > y {
			return true
		}
	}
	return false
}

// planFor returns the launch plan (limits, and the names of their settings for messages) of a job
// that gets a ration.
func planFor(ration limit.Limits, warn func(string)) launch.Plan {
	return launch.Plan{Settings: limit.Settings{Limits: ration}, Sources: launch.Sources{Memory: "memory", Compute: "compute", ComputeMax: "compute_max"}, Warn: warn}
}
