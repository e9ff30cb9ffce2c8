package repolint

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

const maxColumns = 100

var (
	generatedPage = regexp.MustCompile(`(?i)^<!--.*do not edit`)
	notProse      = regexp.MustCompile(`^( {4}| *[|<]|#|!\[)`) // indented code, tables, HTML, headings, pictures
	listMark      = regexp.MustCompile(`^ *([-*]|[0-9]+\.) +`)
)

// checkWidth reports lines of prose that are wider than 100 columns and could be broken earlier, at
// a blank outside code.
func (c *checker) checkWidth(name string, text []byte) {
	if generatedPage.Match(text) {
		return
	}
	eachProseLine(text, func(number int, line string) {
		columns := utf8.RuneCountInString(line)
		if columns <= maxColumns || notProse.MatchString(line) {
			return
		}
		line = strings.TrimLeft(line[len(listMark.FindString(line)):], " ")
		line = inlineCode.ReplaceAllStringFunc(line, func(code string) string { return strings.ReplaceAll(code, " ", "x") })
		if strings.Contains(line, " ") {
			c.report(name, number, "%d columns: wrap it at %d", columns, maxColumns)
		}
	})
}
