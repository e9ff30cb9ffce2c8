package repolint

import (
	"bytes"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode"
)

var (
	inlineCode   = regexp.MustCompile("`[^`]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`^#+ +(.*)`)
)

// checkLinks reports links of a page to files or headings that do not exist. It does not check web
// addresses.
func (c *checker) checkLinks(name string, text []byte) {
	eachProseLine(text, func(number int, line string) {
		for _, m := range markdownLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(m[1], "#")
			target, page := name, text
			if file != "" {
				target = path.Join(path.Dir(name), file)
				if _, err := fs.Stat(c.repo, target); err != nil {
					c.report(name, number, "the link to %s leads nowhere", m[1])
					continue
				}
				page, _ = fs.ReadFile(c.repo, target) // a folder has no headings
			}
			if hasAnchor && !hasHeading(page, anchor) {
				c.report(name, number, "%s has no heading for #%s", target, anchor)
			}
		}
	})
}

// eachProseLine calls f for each line of a page that is not in a fenced block.
func eachProseLine(page []byte, f func(number int, line string)) {
	fenced := false
	for i, line := range bytes.Split(page, []byte("\n")) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("```")) {
			fenced = !fenced
		} else if !fenced {
			f(i+1, string(line))
		}
	}
}

// hasHeading reports whether a page has a heading with this anchor: its letters, digits and hyphens
// in lower case, with a hyphen for each blank.
func hasHeading(page []byte, anchor string) (found bool) {
	eachProseLine(page, func(_ int, line string) {
		m := heading.FindStringSubmatch(line)
		found = found || m != nil && anchor == strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, m[1])
	})
	return found
}
