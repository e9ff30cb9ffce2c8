// Package repolint checks rules of this repository that no linter has:
//
//   - every package has a package comment;
//   - package unsafe is imported only in files named *_unsafe.go, and only in
//     internal/abi, internal/region and internal/agent/privsep, so that all unsafe code is
//     easy to find;
//   - no Go file is longer than 500 lines, unless it is generated;
//   - the C files of shim and of fakegpu include and call each other in no circle, and the
//     folders of shim have an order, so that each file can be read after those below it;
//   - there is no C in internal and cmd: what runs in a process of its own is
//     Go (docs/adr/0009-c-in-a-guest.md);
//   - no line of prose in a page is wider than 100 columns, unless the page is generated;
//   - every link of a page to a file or a heading of this repository leads there;
//   - every promise about security names tests that exist;
//   - no comment marks unfinished work, which belongs in an issue;
//   - no merge has left its marks;
//   - no package of the product declares what only tests use.
//
// Its test checks the whole repository.
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
	unsafeFolders = []string{"internal/abi", "internal/region", "internal/agent/privsep"}
	skipFolders   = []string{"bin", "build", "testdata", "vendor"}
	textFiles     = []string{".c", ".go", ".h", ".md", ".mk", ".pml", ".sh", ".yaml", ".yml"}

	// Split, so that this file does not break the rule. Whole words only: a template
	// for mkstemp ends in six X.
	unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
)

// Check returns every violation of the rules in a repository, in the form path:line: text.
func Check(repo fs.FS) ([]string, error) {
	c := checker{repo: repo, packages: make(map[string]*packageDoc), cFiles: make(map[string]*cFile)}
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
		return c.checkFile(name, text)
	})
	c.checkPackageDocs()
	c.checkCircles()
	slices.Sort(c.violations)
	return c.violations, err
}

func skipped(folder string) bool {
	return folder[0] == '.' || folder[0] == '_' || slices.Contains(skipFolders, folder)
}

type checker struct {
	repo       fs.FS
	packages   map[string]*packageDoc // by folder
	cFiles     map[string]*cFile      // by name
	violations []string
}

// packageDoc records which kinds of files a folder has, and which of them have a package comment.
// Tests need none, unless the folder has only tests.
type packageDoc struct{ code, tests, comment, testComment bool }

func (c *checker) report(name string, line int, format string, args ...any) {
	c.violations = append(c.violations, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, args...))
}

func (c *checker) checkFile(name string, text []byte) error {
	for i, line := range bytes.Split(text, []byte("\n")) {
		if word := unfinished.Find(line); word != nil {
			c.report(name, i+1, "%s: do it, or open an issue", word)
		}
		if bytes.HasPrefix(line, []byte("<<<<<<< ")) {
			c.report(name, i+1, "the mark of a merge: choose")
		}
	}
	switch path.Ext(name) {
	case ".md":
		c.checkLinks(name, text)
		c.checkWidth(name, text)
		c.checkPromises(name, text)
	case ".c", ".h":
		c.readC(name, text)
		if top, _, _ := strings.Cut(name, "/"); top == "internal" || top == "cmd" {
			c.report(name, 1, "C belongs in the preloaded library, the stand-in driver and their test programs")
		}
	case ".go":
		return c.checkGo(name, text)
	}
	return nil
}

func (c *checker) checkGo(name string, text []byte) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if lines := bytes.Count(text, []byte("\n")); lines > maxLines && !ast.IsGenerated(file) {
		c.report(name, lines, "more than %d lines: divide it", maxLines)
	}
	for _, spec := range file.Imports {
		if spec.Path.Value == `"unsafe"` && !mayImportUnsafe(name) {
			c.report(name, fset.Position(spec.Pos()).Line,
				"unsafe belongs in a file named *_unsafe.go in %s", strings.Join(unsafeFolders, " or "))
		}
	}
	c.addPackageDoc(name, file)
	return nil
}

func mayImportUnsafe(name string) bool {
	stem := strings.TrimSuffix(strings.TrimSuffix(name, ".go"), "_test")
	return strings.HasSuffix(stem, "_unsafe") && slices.Contains(unsafeFolders, path.Dir(name))
}

func (c *checker) addPackageDoc(name string, file *ast.File) {
	folder := path.Dir(name)
	p := c.packages[folder]
	if p == nil {
		p = new(packageDoc)
		c.packages[folder] = p
	}
	comment := strings.TrimSpace(file.Doc.Text()) != ""
	if strings.HasSuffix(name, "_test.go") {
		p.tests, p.testComment = true, p.testComment || comment
	} else {
		p.code, p.comment = true, p.comment || comment
	}
}

func (c *checker) checkPackageDocs() {
	for folder, p := range c.packages {
		if p.code && !p.comment || !p.code && p.tests && !p.testComment {
			c.report(folder, 1, "no package comment")
		}
	}
}
