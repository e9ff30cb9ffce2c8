package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"strings"

	"ration/internal/cli"
)

// descriptionsOf returns the comments of all types in the JSON of commands, and of their fields, as
// JSON: by machine.Job and machine.Job.Name. root is the folder of the sources.
func descriptionsOf(ref cli.Reference, root string) ([]byte, error) {
	found := map[string]string{}
	comments := map[string]map[string]string{} // by package
	var err error
	var add func(reflect.Type)
	add = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		module, folder, _ := strings.Cut(t.PkgPath(), "/")
		if _, there := found[t.String()]; err != nil || there || t.Kind() != reflect.Struct || module != "ration" {
			return
		}
		of, there := comments[folder]
		if !there {
			if of, err = commentsIn(filepath.Join(root, folder)); err != nil {
				return
			}
			comments[folder] = of
		}
		found[t.String()] = of[t.Name()]
		for f := range t.Fields() {
			if text := of[t.Name()+"."+f.Name]; text != "" && f.Tag.Get("json") != "-" && f.IsExported() {
				found[t.String()+"."+f.Name] = text
			}
			if f.Anonymous || f.Tag.Get("json") != "" && f.Tag.Get("json") != "-" {
				add(f.Type)
			}
		}
	}
	for _, value := range ref.Outputs {
		add(reflect.TypeOf(value))
	}
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(found, func(_, text string) bool { return text == "" })
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "\t")
	enc.SetEscapeHTML(false)
	err = enc.Encode(found)
	return out.Bytes(), err
}

// commentsIn returns the comments of the structs in a folder, and of their fields.
func commentsIn(folder string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			group, isGroup := d.(*ast.GenDecl)
			if !isGroup {
				continue
			}
			for _, s := range group.Specs {
				if t, isType := s.(*ast.TypeSpec); isType {
					addComments(found, t, group.Doc)
				}
			}
		}
	}
	return found, nil
}

func addComments(found map[string]string, t *ast.TypeSpec, doc *ast.CommentGroup) {
	of, isStruct := t.Type.(*ast.StructType)
	if !isStruct {
		return
	}
	if t.Doc != nil {
		doc = t.Doc
	}
	found[t.Name.Name] = oneLine(doc)
	for _, f := range of.Fields.List {
		for _, name := range f.Names {
			found[t.Name.Name+"."+name.Name] = strings.TrimSpace(oneLine(f.Doc) + " " + oneLine(f.Comment))
		}
	}
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
