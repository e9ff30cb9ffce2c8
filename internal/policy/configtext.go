package policy

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"ration/internal/notify"
)

// These types describe the file's format. Field names are in their tags.
type rationText struct {
	Memory     *string `toml:"memory"`
	Compute    *string `toml:"compute"`
	ComputeMax *string `toml:"compute_max"`
}

type ruleText struct {
	rationText
	Devices     any         `toml:"devices"` // a number, or "all"
	Priority    *string     `toml:"priority"`
	MaxPriority *string     `toml:"max_priority"`
	Projects    []string    `toml:"projects"`
	WhenFull    *string     `toml:"when_full"`
	SleepAfter  *string     `toml:"sleep_after"`
	Exempt      bool        `toml:"exempt"`
	Largest     *rationText `toml:"largest"`
}

type configText struct {
	Overbook  bool                 `toml:"overbook"`
	Missing   *string              `toml:"missing"`
	Memory    *string              `toml:"sleep_memory"`
	Everybody *ruleText            `toml:"everybody"`
	Users     map[string]*ruleText `toml:"users"`
	Groups    map[string]*ruleText `toml:"groups"`
	Notify    []notifyText         `toml:"notify"`
}

// examples has a value for each key with text, for messages.
var examples = map[string]string{"memory": "8g", "compute": "30%", "compute_max": "50%", "missing": MissingClosed, "priority": "low", "max_priority": "high", "projects": "vision", "when_full": WhenFullWait, "sleep_after": "30m", "sleep_memory": "50%",
	"events": notify.GPUFailed, "format": notify.Slack, "command": "/usr/local/bin/page", "url": "https://example.com/hook", "url_file": "/etc/ration/slack.url",
	"to": "admin@example.com", "from": "ration@example.com", "sendmail": sendmail}

// decode decodes a file, and records each problem of its form: wrong syntax, unknown keys and values of another
// type. It takes these parts out, so that the rest is checked as well.
func (r *reader) decode(text []byte) (out configText) {
	tree, text := r.parse(text)
	r.locate(text)
	r.checkForm("", tree, reflect.TypeFor[configText]())
	form, err := toml.Marshal(tree)
	if err == nil {
		err = toml.Unmarshal(form, &out)
	}
	if err != nil {
		r.problem("", "%v", err)
	}
	return out
}

const (
	maxSyntax = 16 // problems of syntax that are reported
	skipped   = "ration-skipped-"
	noEnd     = "its value does not end (a quote or a bracket is missing)"
)

// parse parses TOML. It replaces each line that has an error by a valid one, and returns the text that it could parse.
func (r *reader) parse(text []byte) (tree map[string]any, parsed []byte) {
	lines := strings.Split(string(text), "\n")
	r.wrong = map[int]bool{}
	for n := 0; ; n++ {
		parsed = []byte(strings.Join(lines, "\n"))
		tree = map[string]any{}
		err := toml.Unmarshal(parsed, &tree)
		if err == nil {
			maps.DeleteFunc(tree, func(key string, _ any) bool { return strings.HasPrefix(key, skipped) })
			return tree, parsed
		}
		line, column := 1, 1
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			line, column = bad.Position()
		}
		line = min(max(line, 1), len(lines))
		text := strings.TrimPrefix(err.Error(), "toml: ")
		if begin := unclosed(lines, line); begin > 0 {
			line, column, text = begin, 1, noEnd
		} else if quotes := quotesMissing(lines[line-1]); quotes != "" {
			text = quotes
		}
		again := r.wrong[line]
		if !again {
			r.problems = append(r.problems, Problem{line, max(column, 1), text})
			r.wrong[line] = true
		}
		key, _, assigns := strings.Cut(lines[line-1], "=")
		switch {
		case bad == nil || n >= maxSyntax:
			return map[string]any{}, nil
		case again:
			lines[line-1] = ""
		case isRule(lines[line-1]):
			name := fmt.Sprintf("%s%d-", skipped, line) // no name begins with another
			r.sections[name], r.incomplete[join("users", name)] = strings.Trim(strings.TrimSpace(lines[line-1]), "[]"), true
			lines[line-1] = fmt.Sprintf("[users.%s]", name) // so that the keys below it are checked
		case strings.HasPrefix(strings.TrimSpace(lines[line-1]), "["):
			// The keys below it belong to no other section.
			lines[line-1] = fmt.Sprintf("[%s%d]", skipped, line)
		case assigns:
			lines[line-1] = key + `= ""` // its section still has the key
		default:
			lines[line-1] = ""
		}
	}
}

// quotesMissing says what is wrong with a line that the parser refused if it lacks quotes; otherwise it returns nothing.
func quotesMissing(line string) string {
	key, value, _ := strings.Cut(line, "=")
	value, _, _ = strings.Cut(value, "#")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if strings.Count(value, `"`) == 1 {
		return noEnd
	}
	quoted := strconv.Quote(value)
	if list, is := strings.CutPrefix(value, "["); is && strings.HasSuffix(list, "]") {
		parts := strings.Split(strings.TrimSuffix(list, "]"), ",")
		for i := range parts {
			parts[i] = strconv.Quote(strings.TrimSpace(parts[i]))
		}
		quoted = "[" + strings.Join(parts, ", ") + "]"
	}
	right := key + " = " + quoted
	switch {
	case value == "" || strings.ContainsAny(value, `"'{}`) || toml.Unmarshal([]byte(right), &map[string]any{}) != nil:
		return ""
	case key == "overbook" || key == "exempt":
		return fmt.Sprintf("%s = %s: true or false is needed, without quotes", key, value)
	}
	return fmt.Sprintf("%s = %s: quotes are missing (as %s)", key, value, right)
}

// isRule reports whether a line begins a section of a rule, perhaps with an error.
func isRule(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "[users") || strings.HasPrefix(line, "[groups") || strings.HasPrefix(line, "[everybody")
}

// unclosed returns the line with a value that does not end, if that is why the parser failed at a later line, which is
// valid alone; otherwise 0. Lines count from 1.
func unclosed(lines []string, failed int) int {
	valid := func(lines ...string) bool {
		return toml.Unmarshal([]byte(strings.Join(lines, "\n")), &map[string]any{}) == nil
	}
	if !valid(lines[failed-1]) || valid(lines[:failed-1]...) {
		return 0
	}
	for i := failed - 1; i > 0; i-- {
		if !valid(lines[i-1]) {
			return i
		}
	}
	return 0
}

// checkForm compares a value with the type that it is for. It records a problem for each part that does not fit,
// and takes that part out of its table. It reports whether the value itself fits.
func (r *reader) checkForm(path string, value any, t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		table, is := value.(map[string]any)
		if !is {
			r.problem(path, "%s: a section is needed (as [%s], and below it memory = \"8g\")", r.assignment(path, value), dotted(path))
			return false
		}
		r.checkTable(path, table, t)
		return true
	case reflect.Slice:
		return r.checkList(path, value, t.Elem())
	case reflect.Bool:
		if _, is := value.(bool); !is {
			r.problem(path, "%s: true or false is needed, without quotes", r.assignment(path, value))
			return false
		}
	case reflect.Interface: // devices
		_, number := value.(int64)
		if _, text := value.(string); !number && !text {
			r.problem(path, "%s: a number or \"all\" is needed (as devices = 1)", r.assignment(path, value))
			return false
		}
	case reflect.String:
		if _, is := value.(string); !is {
			r.textProblem(path, value)
			return false
		}
	}
	return true
}

// checkList compares a list with the type of its parts.
func (r *reader) checkList(path string, value any, of reflect.Type) bool {
	list, is := value.([]any)
	if !is && of.Kind() == reflect.Struct {
		r.problem(path, "%s: a section is needed (as [[%s]])", r.assignment(path, value), dotted(path))
		return false
	}
	if !is {
		key := path[strings.LastIndexByte(path, '\x00')+1:]
		r.problem(path, "%s: a list is needed (as %s = [%q])", r.assignment(path, value), key, examples[key])
		return false
	}
	fits := true
	for i, part := range list {
		if _, is := part.(string); !is && of.Kind() == reflect.String {
			key := path[strings.LastIndexByte(path, '\x00')+1:]
			r.problem(path, "%s: each part is text in quotes (as %s = [%q])", dotted(path), key, examples[key])
			return false
		}
		fits = r.checkForm(join(path, index(i)), part, of) && fits
	}
	return fits
}

// index returns the key of a part of a list.
func index(i int) string { return fmt.Sprintf("#%d", i) }

func (r *reader) checkTable(path string, table map[string]any, t reflect.Type) {
	fields := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		fields = fieldsOf(t)
	}
	for key, value := range table {
		of, known := fields[key]
		if t.Kind() == reflect.Map {
			of, known = t.Elem(), true
		}
		inside := join(path, key)
		switch {
		case !known && isTable(value) && slices.Contains([]string{"users", "groups"}, parent(path)):
			r.problem(inside, "%s: no such key (a name with a dot is in quotes: [%s.%q])", dotted(inside), parent(path), strings.TrimPrefix(dotted(inside), parent(path)+"."))
		case !known:
			r.problem(inside, "%s: no such key (%s)", dotted(inside), strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case r.checkForm(inside, value, of):
			continue
		}
		delete(table, key)
		r.incomplete[path] = true
	}
}

func isTable(value any) bool {
	_, is := value.(map[string]any)
	return is
}

// parent returns the path of the table that has the last part of a path.
func parent(path string) string {
	at := strings.LastIndexByte(path, 0)
	return path[:max(at, 0)]
}

// textProblem records that a value which is not in quotes must be.
func (r *reader) textProblem(path string, value any) {
	key := path[strings.LastIndexByte(path, '\x00')+1:]
	example, unit := examples[key], ""
	if example != "" && strings.ContainsAny(example[:1], "0123456789") {
		unit = example[len(example)-1:]
	}
	switch value.(type) {
	case int64, float64:
		if unit != "" {
			r.problem(path, "%s: a unit and quotes are missing (as %s = \"%v%s\")", r.assignment(path, value), key, value, unit)
			return
		}
	}
	r.problem(path, "%s: text in quotes is needed (as %s = %q)", r.assignment(path, value), key, example)
}

// assignment returns what the file says, as far as that is one line.
func (r *reader) assignment(path string, value any) string {
	key := path[strings.LastIndexByte(path, '\x00')+1:]
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%s = %q", key, v)
	case map[string]any, []any:
		return dotted(path)
	}
	return fmt.Sprintf("%s = %v", key, value)
}

// fieldsOf returns the keys of a table, with the types of their values.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		if f.Anonymous {
			maps.Copy(out, fieldsOf(f.Type))
			continue
		}
		out[f.Tag.Get("toml")] = f.Type
	}
	return out
}

// join appends a key to the path of its table.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "\x00" + key
}

// dotted returns a path for people, without the indexes of lists.
func dotted(path string) string {
	keys := slices.DeleteFunc(strings.Split(path, "\x00"), func(key string) bool { return strings.HasPrefix(key, "#") })
	return strings.Join(keys, ".")
}
