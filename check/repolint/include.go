package repolint

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// cRoots are the folders with C in which circles are forbidden. A file includes another by its path
// below the folder, or by its path relative to the file.
var cRoots = []string{"fakegpu", "shim"}

// cLayers are the folders of shim. Each may use only those before it. "" is shim itself.
var cLayers = []string{"region", "", "compute", "hooks"}

var (
	includeLine = regexp.MustCompile(`^\s*#\s*include\s*"([^"]+)"`)

	// Parts of a file that are not code: comments, strings and character constants.
	cNoCode = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`)
	// A definition begins with a type at the start of a line. A macro call has no type.
	cFunction = regexp.MustCompile(`(?m)^((?:\w+[\s*]+)+)(\w+)\([^;{}]*\)\s*\{`)
	cVariable = regexp.MustCompile(`(?m)^((?:\w+[\s*]+)+)(\w+)(?:\[[^\]]*\])*(?:\s*=|;)`)
	cWord     = regexp.MustCompile(`(\.|->)?\b([A-Za-z_]\w*)\b(\()?`)
	cPrefix   = regexp.MustCompile(`__attribute__\(\(.*?\)\)`)
)

// cFile has the names that a C file uses from other files, and defines for them. A .c file and the
// .h file of the same name are one unit.
type cFile struct {
	name     string
	root     string          // the folder of cRoots that it is in
	includes map[string]int  // included files, with their lines
	own      map[string]bool // all names that it defines
	// Names that others can use. Test programs and headers have none of these.
	functions, variables []string
	calls, names         map[string]int // words before a parenthesis, and other words, with their lines
}

func (c *checker) readC(name string, text []byte) {
	root := cRoot(name)
	if root == "" {
		return
	}
	f := &cFile{name: name, root: root, includes: make(map[string]int)}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if m := includeLine.FindSubmatch(line); m != nil {
			f.includes[string(m[1])] = i + 1
		}
	}
	if path.Ext(name) == ".c" && !strings.HasPrefix(name, root+"/test/") {
		f.readWords(text)
	}
	c.cFiles[name] = f
	c.checkLayer(f)
}

func cRoot(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(cRoots, top) {
		return top
	}
	return ""
}

func (f *cFile) readWords(text []byte) {
	code := cNoCode.ReplaceAllFunc(text, func(m []byte) []byte { // lines stay where they are
		return append(bytes.Repeat([]byte("\n"), bytes.Count(m, []byte("\n"))), ' ')
	})
	code = cPrefix.ReplaceAll(code, nil)
	f.own, f.calls, f.names = make(map[string]bool), make(map[string]int), make(map[string]int)
	f.functions = f.definitions(cFunction, code)
	f.variables = f.definitions(cVariable, code)
	for i, line := range bytes.Split(code, []byte("\n")) {
		for _, m := range cWord.FindAllSubmatch(line, -1) {
			if len(m[1]) > 0 {
				continue // a field
			}
			words := f.names
			if len(m[3]) > 0 {
				words = f.calls
			}
			if _, ok := words[string(m[2])]; !ok {
				words[string(m[2])] = i + 1
			}
		}
	}
}

// definitions returns the names that the file defines and other files can use.
func (f *cFile) definitions(re *regexp.Regexp, code []byte) (shared []string) {
	for _, m := range re.FindAllSubmatch(code, -1) {
		words, name := strings.Fields(string(m[1])), string(m[2])
		if slices.Contains(words, "extern") || slices.Contains(words, "typedef") {
			continue
		}
		f.own[name] = true
		if !slices.Contains(words, "static") {
			shared = append(shared, name)
		}
	}
	return shared
}

// checkLayer reports includes of a higher folder of shim.
func (c *checker) checkLayer(f *cFile) {
	at := cLayer(strings.TrimPrefix(f.name, "shim/"))
	if f.root != "shim" || at < 0 {
		return
	}
	for target, line := range f.includes {
		if strings.Contains(target, "/") && cLayer(target) > at {
			c.report(f.name, line, "%s is above this folder: let it register a callback", target)
		}
	}
}

func cLayer(name string) int {
	folder := path.Dir(name)
	if folder == "." {
		folder = ""
	}
	return slices.Index(cLayers, folder)
}

// included returns the file that the compiler would find for an include, or nil if it is outside
// the folder.
func (c *checker) included(f *cFile, target string) *cFile {
	for _, folder := range []string{path.Dir(f.name), f.root} {
		if found := c.cFiles[path.Join(folder, target)]; found != nil {
			return found
		}
	}
	return nil
}

func cUnit(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }

// cEdge is a reason why a unit depends on another.
type cEdge struct {
	to, file string
	line     int
	why      string
}

// cEdges returns the units that each unit depends on: those that it includes, and those whose
// functions it calls or whose variables it uses. Includes alone do not show the latter if units
// share a header.
func (c *checker) cEdges() map[string][]cEdge {
	edges := make(map[string][]cEdge)
	for _, name := range slices.Sorted(maps.Keys(c.cFiles)) {
		f := c.cFiles[name]
		unit := cUnit(name)
		for _, target := range slices.Sorted(maps.Keys(f.includes)) {
			if found := c.included(f, target); found != nil {
				edges[unit] = append(edges[unit], cEdge{cUnit(found.name), name, f.includes[target], "includes"})
			}
		}
		use := func(other string, words []string, uses map[string]int) {
			for _, word := range words {
				if line := uses[word]; line > 0 && !f.own[word] {
					edges[unit] = append(edges[unit], cEdge{cUnit(other), name, line, fmt.Sprintf("uses %s of", word)})
				}
			}
		}
		for _, other := range slices.Sorted(maps.Keys(c.cFiles)) {
			if o := c.cFiles[other]; o.root == f.root {
				use(other, o.functions, f.calls) // a function's name alone may be a field or a local variable
				use(other, o.variables, f.names)
			}
		}
	}
	return edges
}

// checkCircles reports each pair of units whose second closes a circle, found by a depth-first
// search in the order of names.
func (c *checker) checkCircles() {
	var (
		walk     func(unit string)
		way      []string // the units from the start to here, each with its reason
		units    []string
		edges    = c.cEdges()
		done     = make(map[string]bool)
		reported = make(map[string]bool) // by pair of units
	)
	walk = func(unit string) {
		units = append(units, unit)
		for _, e := range edges[unit] {
			way = append(way, unit+" "+e.why)
			if at := slices.Index(units, e.to); at >= 0 && e.to != unit {
				if !reported[unit+" "+e.to] {
					c.report(e.file, e.line, "a circle: %s %s", strings.Join(way[at:], " "), e.to)
				}
				reported[unit+" "+e.to] = true
			} else if at < 0 && !done[e.to] {
				walk(e.to)
			}
			way = way[:len(way)-1]
		}
		units = units[:len(units)-1]
		done[unit] = true
	}
	for _, unit := range slices.Sorted(maps.Keys(edges)) {
		if !done[unit] {
			walk(unit)
		}
	}
}
