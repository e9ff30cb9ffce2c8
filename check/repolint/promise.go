package repolint

import (
	"bytes"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// promisePages have tables of promises, whose last column names the tests that show them.
var promisePages = []string{"SECURITY.md", "docs/security.md"}

// testColumns are the headings of such a column.
var testColumns = []string{"test", "test that shows it"}

// checkPromises reports a promise of a page whose test does not exist. A test is named by its file, the folder
// of its package, the name of a script of internal/cli, its own name, or the target of the Makefile that runs
// it.
func (c *checker) checkPromises(name string, text []byte) {
	if !slices.Contains(promisePages, name) {
		return
	}
	var before string
	inside := false
	eachProseLine(text, func(number int, line string) {
		was := before
		before = line
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.HasPrefix(line, "|---"):
			inside = slices.Contains(testColumns, lastCell(was))
		case inside:
			if strings.HasPrefix(lastCell(line), "fuzz tests") {
				return // of everything that parses
			}
			tests := inlineCode.FindAllString(lastCell(line), -1)
			if len(tests) == 0 {
				c.report(name, number, "a promise without a test")
			}
			for _, test := range tests {
				if !c.isTest(strings.Trim(test, "`")) {
					c.report(name, number, "there is no test %s", test)
				}
			}
		}
	})
}

// lastCell returns the last cell of a row of a table.
func lastCell(row string) string {
	cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(row), "|"), "|")
	return strings.TrimSpace(cells[len(cells)-1])
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)\w+$`)

// isTest reports whether a page's name of a test means one.
func (c *checker) isTest(name string) bool {
	if target, is := strings.CutPrefix(name, "make "); is {
		text, err := fs.ReadFile(c.repo, "Makefile")
		return err == nil && regexp.MustCompile(`(?m)^[\w -]*\b`+regexp.QuoteMeta(target)+`\b[\w -]*:`).Match(text)
	}
	if testName.MatchString(name) {
		return c.findFile(".", "_test.go", []byte("\nfunc "+name+"("))
	}
	if path.Ext(name) == ".txtar" && !strings.Contains(name, "/") {
		for _, folder := range []string{"script", "run"} {
			if _, err := fs.Stat(c.repo, path.Join("internal/cli/testdata", folder, name)); err == nil {
				return true
			}
		}
		return false
	}
	st, err := fs.Stat(c.repo, name)
	return err == nil && (!st.IsDir() || c.findFile(name, "_test.go", nil))
}

// findFile reports whether a folder has a file whose name ends so, and which has a text.
func (c *checker) findFile(folder, ending string, has []byte) (found bool) {
	_ = fs.WalkDir(c.repo, folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != folder && skipped(d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ending):
			return nil
		}
		text, err := fs.ReadFile(c.repo, name)
		if err == nil && bytes.Contains(text, has) {
			found = true
			return fs.SkipAll
		}
		return err
	}) // what cannot be read, Check reports
	return found
}
