package repolint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
)

// layers returns the row of each package in the table of docs/architecture.md. The
// lowest layer is the first row.
func layers(page string) map[string]int {
	_, table, _ := strings.Cut(page, "## The Go packages")
	rows := map[string]int{}
	row := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		row++
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			rows[name[1]] = row
		}
	}
	return rows
}

// The table of docs/architecture.md has every package, and no package imports one of
// a higher layer. Test files may.
func TestArchitecturePage(t *testing.T) {
	repo := os.DirFS("../..")
	page, err := fs.ReadFile(repo, "docs/architecture.md")
	expect.OK(t, err)
	rows, found := layers(string(page)), map[string]bool{}
	err = fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && skipped(d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".go" {
			return nil
		}
		folder := path.Dir(name)
		found[folder] = true
		expect.True(t, rows[folder] != 0, folder, "docs/architecture.md does not have this package")
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			whole, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imported, ours := strings.CutPrefix(whole, "ration/")
			expect.True(t, !ours || rows[imported] <= rows[folder],
				name, "imports", imported, "which comes after", folder, "in docs/architecture.md")
		}
		return nil
	})
	expect.OK(t, err)
	for name := range rows {
		expect.True(t, found[name], "docs/architecture.md has", name, "which is no package")
	}
}
