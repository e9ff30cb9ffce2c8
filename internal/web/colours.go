package web

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"ration/machine"
)

// Each user has a colour on the page; on a user's own page, each job has one. A name chooses its
// colour by its hash, so it has the same one after a restart. If another name has that colour, it
// takes the next free one. Names beyond the eighth get a colour with a pattern. Names beyond
// styleCount share one grey.
//
// A name keeps its colour while it is among the first 2*styleCount by memory, and while no name
// without a colour holds twice as much. So colours do not flicker between names that hold about the
// same.
const (
	colourCount  = 8
	patternCount = 3 // plain, striped and dotted
	styleCount   = colourCount * patternCount
	noColour     = "cx"
)

// elementID returns the id of a job's element. If two elements have the same id, the second is not
// shown. Users choose paths and times of their jobs, and must not be able to produce the id of
// another user's job.
func elementID(id machine.JobID) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", id.Path, id.Created.UnixNano()))
	return fmt.Sprintf("job-%x", sum[:12])
}

// style is a colour with a pattern: the colour is style modulo colourCount.
type style int

// grey is the style of names without a colour.
const grey style = -1

// Class returns the CSS classes of a style.
func (s style) Class() string {
	if s < 0 {
		return noColour
	}
	class := fmt.Sprintf("c%d", s%colourCount)
	if p := s.Pattern(); p != "" {
		class += " " + p
	}
	return class
}

// Pattern returns the id of the pattern that is drawn over the colour, or "".
func (s style) Pattern() string {
	return [patternCount]string{"", "striped", "dotted"}[max(s, 0)/colourCount]
}

type colours struct {
	of map[string]style
}

func newColours() *colours { return &colours{of: map[string]style{}} }

// assign gives colours to the names that hold the most. held has the bytes of each name.
func (c *colours) assign(held map[string]uint64) {
	all := slices.SortedFunc(maps.Keys(held), func(a, b string) int { return cmp.Or(cmp.Compare(held[b], held[a]), strings.Compare(a, b)) })
	rank := map[string]int{}
	for i, name := range all {
		rank[name] = i
	}
	var owner [styleCount]*string
	for name, s := range c.of {
		if at, there := rank[name]; !there || at >= 2*styleCount {
			delete(c.of, name)
		} else {
			owner[s] = &name
		}
	}
	// In the order of names, because sizes are different after a restart.
	for _, name := range slices.Sorted(slices.Values(all[:min(len(all), styleCount)])) {
		if _, has := c.of[name]; has {
			continue
		}
		s := freeStyle(name, &owner)
		if s == grey { // the name with a colour that holds least loses it, if it holds much less
			s = 0
			for i := range owner {
				if rank[*owner[i]] > rank[*owner[s]] {
					s = style(i)
				}
			}
			if held[name] < 2*held[*owner[s]] {
				continue
			}
			delete(c.of, *owner[s])
		}
		c.of[name], owner[s] = s, &name
	}
}

// freeStyle returns the style that a name chooses of those without an owner, or grey. Styles without
// a pattern come first.
func freeStyle(name string, owner *[styleCount]*string) style {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	sum := int(h.Sum32())
	first, step := sum%colourCount, 1+2*(sum/colourCount%4) // an odd step reaches all eight
	for pattern := range patternCount {
		for i := range colourCount {
			if s := pattern*colourCount + (first+i*step)%colourCount; owner[s] == nil {
				return style(s)
			}
		}
	}
	return grey
}

// style returns the style of a name.
func (c *colours) style(name string) style {
	if s, has := c.of[name]; has {
		return s
	}
	return grey
}
