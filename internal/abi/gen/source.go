package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// source has the parts of package abi's source that reflection does not know: constants, comments
// and the order of declarations.
type source struct {
	groups  []group
	docs    map[string]string   // by Type, Type.Field and Type.Method
	methods map[string][]string // of each type, in the order of declaration
}

// group is one const declaration.
type group struct {
	doc       string
	constants []constantDecl
}

type constantDecl struct {
	name, doc string
	value     uint64
}

// load reads the package in dir.
func load(dir string) (*source, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := conf.Check("abi", fset, files, info); err != nil {
		return nil, fmt.Errorf("reading package abi in %s: %w", dir, err)
	}
	s := &source{docs: map[string]string{}, methods: map[string][]string{}}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				s.method(d)
			case *ast.GenDecl:
				s.constants(d, info)
				s.types(d)
			}
		}
	}
	return s, nil
}

func (s *source) method(d *ast.FuncDecl) {
	if d.Recv == nil || !d.Name.IsExported() {
		return
	}
	if of, ok := d.Recv.List[0].Type.(*ast.Ident); ok {
		s.methods[of.Name] = append(s.methods[of.Name], d.Name.Name)
		s.docs[of.Name+"."+d.Name.Name] = line(d.Doc)
	}
}

// constants adds the exported constants. Failpoints have a list of their own.
func (s *source) constants(d *ast.GenDecl, info *types.Info) {
	if d.Tok != token.CONST {
		return
	}
	g := group{doc: line(d.Doc)}
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for _, name := range v.Names {
			c := info.Defs[name].(*types.Const)
			value, exact := constant.Uint64Val(c.Val())
			if !name.IsExported() || !exact || strings.HasSuffix(c.Type().String(), ".Failpoint") {
				continue
			}
			g.constants = append(g.constants, constantDecl{name.Name, line(v.Doc, v.Comment), value})
		}
	}
	if len(g.constants) > 0 {
		s.groups = append(s.groups, g)
	}
}

func (s *source) types(d *ast.GenDecl) {
	if d.Tok != token.TYPE {
		return
	}
	for _, spec := range d.Specs {
		t := spec.(*ast.TypeSpec)
		s.docs[t.Name.Name] = line(d.Doc, t.Doc)
		if st, ok := t.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					s.docs[t.Name.Name+"."+name.Name] = line(f.Doc, f.Comment)
				}
			}
		}
	}
}

// line returns the text of comments on one line.
func line(comments ...*ast.CommentGroup) string {
	var words []string
	for _, c := range comments {
		words = append(words, strings.Fields(c.Text())...)
	}
	return strings.Join(words, " ")
}
