// Package repolint checks the rules this repository keeps and no linter knows:
//
//   - every package says in a comment what it is for;
//   - package unsafe is imported only in files named *_unsafe.go, and only in
//     internal/abi and internal/region, so that a reader who worries about
//     memory knows where to look;
//   - no Go file that a person wrote is longer than 500 lines: two things live
//     in it by then;
//   - the C files of shim include each other in no circle, and those of its
//     root no file of hooks, so that each can be read after those below it;
//   - nothing is left for later in a comment, where nobody finds it.
//
// Its test walks the whole repository, so `go test ./...` keeps the rules.
package repolint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

const maxLines = 500

var (
	unsafeFolders = []string{"internal/abi", "internal/region"}
	skipFolders   = []string{"bin", "build", "testdata", "vendor"}
	textFiles     = []string{".c", ".go", ".h", ".md", ".mk", ".pml", ".sh", ".yaml", ".yml"}

	// Split, so that this file keeps the rule it makes. Whole words only: a
	// template for mkstemp ends in six of the last letter.
	later = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
)

// Check returns every breach of the rules in a repository, as path:line: what.
func Check(repo fs.FS) ([]string, error) {
	c := checker{packages: make(map[string]*documented), cFiles: make(map[string]bool), includes: make(map[string][]include)}
	err := fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && skipped(d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !slices.Contains(textFiles, path.Ext(name)) && d.Name() != "Makefile" {
			return nil
		}
		text, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		return c.file(name, text)
	})
	c.undocumented()
	c.circles()
	slices.Sort(c.breaches)
	return c.breaches, err
}

func skipped(folder string) bool {
	return folder[0] == '.' || folder[0] == '_' || slices.Contains(skipFolders, folder)
}

type checker struct {
	packages map[string]*documented
	cFiles   map[string]bool
	includes map[string][]include // by unit
	breaches []string
}

// documented is whether a folder's package has a comment. Tests need none of
// their own, unless there is nothing else in the folder.
type documented struct{ code, tests, comment, testComment bool }

func (c *checker) breach(name string, line int, format string, args ...any) {
	c.breaches = append(c.breaches, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, args...))
}

func (c *checker) file(name string, text []byte) error {
	for i, line := range bytes.Split(text, []byte("\n")) {
		if word := later.Find(line); word != nil {
			c.breach(name, i+1, "%s: do it, or open an issue", word)
		}
	}
	if ext := path.Ext(name); ext == ".c" || ext == ".h" {
		c.include(name, text)
	}
	if path.Ext(name) != ".go" {
		return nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if lines := bytes.Count(text, []byte("\n")); lines > maxLines && !ast.IsGenerated(file) {
		c.breach(name, lines, "more than %d lines: which two things live here?", maxLines)
	}
	for _, spec := range file.Imports {
		if spec.Path.Value == `"unsafe"` && !mayBeUnsafe(name) {
			c.breach(name, fset.Position(spec.Pos()).Line,
				"unsafe belongs in a file named *_unsafe.go in %s", strings.Join(unsafeFolders, " or "))
		}
	}
	c.document(name, file)
	return nil
}

func mayBeUnsafe(name string) bool {
	stem := strings.TrimSuffix(strings.TrimSuffix(name, ".go"), "_test")
	return strings.HasSuffix(stem, "_unsafe") && slices.Contains(unsafeFolders, path.Dir(name))
}

func (c *checker) document(name string, file *ast.File) {
	folder := path.Dir(name)
	p := c.packages[folder]
	if p == nil {
		p = new(documented)
		c.packages[folder] = p
	}
	comment := strings.TrimSpace(file.Doc.Text()) != ""
	if strings.HasSuffix(name, "_test.go") {
		p.tests, p.testComment = true, p.testComment || comment
	} else {
		p.code, p.comment = true, p.comment || comment
	}
}

func (c *checker) undocumented() {
	for folder, p := range c.packages {
		if p.code && !p.comment || !p.code && p.tests && !p.testComment {
			c.breach(folder, 1, "no file of this package says what it is for")
		}
	}
}
