package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"ration/internal/abi"
)

// text is the page without its tables.
//
//go:embed format.md.tmpl
var text string

// writePage writes docs/format.md.
func (s *source) writePage(path string) error {
	structures, err := s.structures()
	if err != nil {
		return err
	}
	packed, err := s.packed()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	err = template.Must(template.New("format").Parse(text)).Execute(&out, map[string]any{
		"Version": abi.Version, "Structures": structures, "Words": packed, "Constants": s.constantTables(),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// structures describes each structure. A structure comes before those that it contains.
func (s *source) structures() (string, error) {
	var b strings.Builder
	done := map[reflect.Type]bool{}
	for next := []reflect.Type{reflect.TypeFor[abi.Region]()}; len(next) > 0; next = next[1:] {
		t := next[0]
		if done[t] {
			continue
		}
		done[t] = true
		fmt.Fprintf(&b, "\n### %s\n\n%s %d bytes.\n\n", t.Name(), s.docs[t.Name()], t.Size())
		b.WriteString("| offset | size | type | field | meaning |\n|---:|---:|---|---|---|\n")
		for f := range t.Fields() {
			if f.Type.Size() == 0 {
				continue // a marker for the compiler
			}
			if f.Name == "_" {
				fmt.Fprintf(&b, "| %d | %d | | | reserved |\n", f.Offset, f.Type.Size())
				continue
			}
			kind, of := typeName(f.Type)
			doc := s.docs[t.Name()+"."+f.Name]
			if of != nil {
				next = append(next, of)
			} else if doc == "" {
				return "", fmt.Errorf("%s.%s has no comment", t.Name(), f.Name)
			}
			fmt.Fprintf(&b, "| %d | %d | %s | %s | %s |\n", f.Offset, f.Type.Size(), kind, f.Name, linked(doc))
		}
	}
	return b.String(), nil
}

// typeName returns the name of a field's type for the page, and the structure that it consists of,
// if any.
func typeName(t reflect.Type) (name string, of reflect.Type) {
	dims := ""
	for ; t.Kind() == reflect.Array; t = t.Elem() {
		dims += fmt.Sprintf("[%d]", t.Len())
	}
	if t.Kind() == reflect.Struct {
		return fmt.Sprintf("[%s](#%s)%s", t.Name(), strings.ToLower(t.Name()), dims), t
	}
	return fmt.Sprintf("u%d%s", 8*t.Size(), dims), nil
}

var packedBy = regexp.MustCompile(`packed by (\w+)`)

func linked(doc string) string {
	return packedBy.ReplaceAllStringFunc(doc, func(m string) string {
		name := packedBy.FindStringSubmatch(m)[1]
		return fmt.Sprintf("packed by [%s](#%s)", name, strings.ToLower(name))
	})
}

// packed describes each packed word. Each of them must be used by a field, and each packed field
// must be described.
func (s *source) packed() (string, error) {
	var b strings.Builder
	var have, named []string
	for _, doc := range s.docs {
		for _, m := range packedBy.FindAllStringSubmatch(doc, -1) {
			named = append(named, m[1])
		}
	}
	for _, word := range words {
		have = append(have, word.Name())
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", word.Name(), s.docs[word.Name()])
		b.WriteString("| lowest bit | bits | type | part | meaning |\n|---:|---:|---|---|---|\n")
		for _, method := range s.methods[word.Name()] {
			if r, ok := rangeOf(word, method); ok {
				kind := map[bool]string{false: "unsigned", true: "signed"}[r.signed]
				fmt.Fprintf(&b, "| %d | %d | %s | %s | %s |\n", r.low, r.width, kind, method, s.docs[word.Name()+"."+method])
			}
		}
	}
	slices.Sort(have)
	slices.Sort(named)
	if named = slices.Compact(named); !slices.Equal(have, named) {
		return "", fmt.Errorf("comments name as packed %v, the generator knows %v", named, have)
	}
	return b.String(), nil
}

func (s *source) constantTables() string {
	var b strings.Builder
	for _, g := range s.groups {
		fmt.Fprintf(&b, "\n%s\n\n| name | value | meaning |\n|---|---:|---|\n", g.doc)
		for _, c := range g.constants {
			value := fmt.Sprint(c.value)
			if c.value > 1<<40 {
				value = fmt.Sprintf("%#x", c.value)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name, value, c.doc)
		}
	}
	return b.String()
}
