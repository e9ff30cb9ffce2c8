package repolint

import (
	"bytes"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// cRoot is the folder whose C files are kept in layers. Its files name each
// other by their path below it, or beside the file that includes them.
const cRoot = "shim"

var includeLine = regexp.MustCompile(`^\s*#\s*include\s*"([^"]+)"`)

// include is one line that includes a file. A .c file and the .h file of the
// same name are one unit.
type include struct {
	file, target string
	line         int
}

func (c *checker) checkIncludes(name string, text []byte) {
	if !strings.HasPrefix(name, cRoot+"/") {
		return
	}
	c.cFiles[name] = true
	for i, line := range bytes.Split(text, []byte("\n")) {
		m := includeLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		target := string(m[1])
		c.includes[cUnit(name)] = append(c.includes[cUnit(name)], include{name, target, i + 1})
		if path.Dir(name) == cRoot && strings.HasPrefix(target, "hooks/") {
			c.report(name, i+1, "%s is above the files of %s: let it register a callback", target, cRoot)
		}
	}
}

// included returns the unit that a line includes, as the compiler finds it, or
// "" for a file outside cRoot.
func (c *checker) included(i include) string {
	for _, folder := range []string{path.Dir(i.file), cRoot} {
		if file := path.Join(folder, i.target); c.cFiles[file] {
			return cUnit(file)
		}
	}
	return ""
}

func cUnit(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }

// checkCircles reports each include that closes a circle, as a depth-first walk in
// the order of names finds it.
func (c *checker) checkCircles() {
	var (
		walk func(unit string)
		way  []string // the units between the start and here
		done = make(map[string]bool)
	)
	walk = func(unit string) {
		way = append(way, unit)
		for _, i := range c.includes[unit] {
			next := c.included(i)
			if at := slices.Index(way, next); at >= 0 && next != unit {
				c.report(i.file, i.line, "a circle: %s", strings.Join(append(slices.Clone(way[at:]), next), " includes "))
			} else if at < 0 && !done[next] {
				walk(next)
			}
		}
		way = way[:len(way)-1]
		done[unit] = true
	}
	for _, unit := range slices.Sorted(maps.Keys(c.includes)) {
		if !done[unit] {
			walk(unit)
		}
	}
}
