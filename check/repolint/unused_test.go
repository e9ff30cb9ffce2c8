package repolint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"ration/check/expect"
)

// onlyTests are programs of this module that only tests start: what they alone use is for tests.
var onlyTests = []string{"ration/check/worker"}

// forOthers are packages whose names are for code outside this module, or for C.
var forOthers = []string{"ration/machine", "ration/internal/abi"}

// hooks are functions that tests of other packages call, and nothing else can do what they do.
var hooks = map[string]bool{
	"ration/internal/policy.OnStep": true, // ends the keeper between two steps
	"ration/internal/sleep.OnStep":  true, // ends a command that puts a job to sleep or wakes it, between two steps
	"ration/internal/launch.OnStep": true, // stops a command that waits for room, before its job is made
}

// What a package of the product declares has a use outside tests: in another declaration of this
// module, in a module of its own (kube), in a file for other build tags, or in a template. That
// goes for functions and methods, and for everything that is exported; staticcheck says the same
// of the rest. A method that an interface asks for has a use. What only tests need belongs in a
// file of tests, or in check.
func TestUnused(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks the whole module")
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
		Dir:  "../..",
	}, "./...")
	expect.Must(t, err == nil && packages.PrintErrors(loaded) <= 0, "loading the module", err)
	u := usage{objects: map[string]bool{}, names: map[string]bool{}}
	checked := map[string]bool{}
	for _, p := range loaded {
		for _, file := range p.GoFiles {
			checked[file] = true
		}
		if !slices.Contains(onlyTests, p.PkgPath) {
			u.addPackage(p)
		}
	}
	expect.OK(t, u.addNames(checked))
	for _, p := range loaded {
		if strings.HasPrefix(p.PkgPath, "ration/check/") || slices.Contains(forOthers, p.PkgPath) {
			continue // what is in check is for tests
		}
		for id, object := range p.TypesInfo.Defs {
			if at := p.Fset.Position(id.Pos()); object != nil && checked[at.Filename] && declared(object) && !u.uses(object) && !hooks[key(object)] {
				t.Errorf("%s:%d: %s has no use outside tests", at.Filename, at.Line, key(object))
			}
		}
	}
}

// usage is what the module uses.
type usage struct {
	objects    map[string]bool // by key
	names      map[string]bool // of methods, in files that are not type-checked
	interfaces []*types.Interface
}

// declared reports whether the rule is about an object.
func declared(object types.Object) bool {
	if f, is := object.(*types.Func); is {
		return f.Signature().Recv() == nil && f.Name() != "main" && f.Name() != "init" && f.Name() != "_" || receiver(f) != nil
	}
	return object.Exported() && object.Parent() == object.Pkg().Scope()
}

func receiver(f *types.Func) *types.Named {
	recv := f.Signature().Recv()
	if recv == nil {
		return nil
	}
	t := recv.Type()
	if p, is := t.(*types.Pointer); is {
		t = p.Elem()
	}
	named, _ := t.(*types.Named)
	if named != nil && types.IsInterface(named) {
		return nil
	}
	return named
}

// key names an object, whether it was read from source or from export data.
func key(object types.Object) string {
	name := object.Name()
	if f, is := object.(*types.Func); is {
		if f = f.Origin(); receiver(f) != nil {
			name = receiver(f).Obj().Name() + "." + name
		}
	}
	return object.Pkg().Path() + "." + name
}

// addPackage adds what a package uses. That a declaration uses itself does not count.
func (u *usage) addPackage(p *packages.Package) {
	for _, file := range p.Syntax {
		for _, decl := range file.Decls {
			self := ""
			if f, is := decl.(*ast.FuncDecl); is {
				self = key(p.TypesInfo.Defs[f.Name])
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				id, _ := n.(*ast.Ident)
				object := p.TypesInfo.Uses[id]
				if field, is := object.(*types.Var); object == nil || object.Pkg() == nil || is && field.IsField() || receives(decl, id) {
					return true
				}
				if name := key(object); name != self {
					u.objects[name] = true
				}
				return true
			})
		}
	}
	for _, tv := range p.TypesInfo.Types {
		u.addInterface(tv.Type)
	}
	for _, imported := range p.Types.Imports() {
		for _, name := range imported.Scope().Names() {
			if object, is := imported.Scope().Lookup(name).(*types.TypeName); is {
				u.addInterface(object.Type())
			}
		}
	}
}

// receives reports whether an identifier is in the receiver of a method: a type is not in use
// because it has methods.
func receives(decl ast.Decl, id *ast.Ident) bool {
	f, is := decl.(*ast.FuncDecl)
	return is && f.Recv != nil && f.Recv.Pos() <= id.Pos() && id.Pos() < f.Recv.End()
}

func (u *usage) addInterface(t types.Type) {
	if t == nil {
		return
	}
	if i, is := t.Underlying().(*types.Interface); is && i.NumMethods() > 0 {
		u.interfaces = append(u.interfaces, i)
	}
}

// addNames adds the names in files that were not type-checked: modules of their own, files for
// other build tags, templates.
func (u *usage) addNames(checked map[string]bool) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && skipped(d.Name()):
			return fs.SkipDir
		case filepath.Ext(path) == ".html":
			text, err := os.ReadFile(path)
			for _, match := range field.FindAllStringSubmatch(string(text), -1) {
				u.names[match[1]] = true
			}
			return err
		case filepath.Ext(path) != ".go" || checked[path]:
			return nil
		case strings.HasSuffix(path, "_test.go") && filepath.Base(filepath.Dir(path)) != "gputest": // a program that is taken along
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parsing %s: %w", path, err)
		}
		imports := map[string]string{} // by the name in this file
		for _, i := range file.Imports {
			from, _ := strconv.Unquote(i.Path.Value)
			name := majorVersion.ReplaceAllString(from, "")
			name = name[strings.LastIndex(name, "/")+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			imports[name] = from
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selector, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			if id, is := selector.X.(*ast.Ident); is && imports[id.Name] != "" {
				u.objects[imports[id.Name]+"."+selector.Sel.Name] = true
			} else {
				u.names[selector.Sel.Name] = true
			}
			return true
		})
		return nil
	})
}

var majorVersion = regexp.MustCompile(`/v[0-9]+$`)

// field is a field or a method that a template names.
var field = regexp.MustCompile(`\.([A-Z]\w*)`)

func (u *usage) uses(object types.Object) bool {
	f, is := object.(*types.Func)
	if u.objects[key(object)] || !is || receiver(f) == nil {
		return u.objects[key(object)]
	}
	if u.names[f.Name()] {
		return true
	}
	if slices.Contains([]string{"Unwrap", "Is", "As"}, f.Name()) { // package errors has no names for these interfaces
		return true
	}
	for _, i := range u.interfaces {
		for m := range i.Methods() {
			if m.Name() == f.Name() && types.Identical(m.Type(), f.Type()) {
				return true
			}
		}
	}
	return false
}
