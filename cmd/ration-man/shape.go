package main

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"ration/internal/cli"
	"ration/machine"
)

// shapeWriter writes the names of a JSON value's fields, wrapped and indented.
type shapeWriter struct {
	strings.Builder
	column, depth int
	printed       map[reflect.Type]string // where the fields of a type were printed
}

// jsonShape returns the JSON fields of a type: {"job", "devices": [{"limit"}]}. The fields of a
// process are shown only with ration ps.
func jsonShape(t reflect.Type, withProcesses bool) string {
	w := &shapeWriter{depth: 2, column: 4, printed: map[reflect.Type]string{}}
	if !withProcesses {
		w.printed[reflect.TypeFor[machine.Process]()] = "as in ration ps"
	}
	w.WriteString("    ")
	w.object(t, "the first")
	return w.String()
}

// put writes a word, on a new line if it does not fit.
func (w *shapeWriter) put(word string) {
	if w.column+len(", ")+len(word) > pageWidth {
		w.newLine()
	}
	if before := w.String(); strings.HasSuffix(before, ",") {
		w.WriteString(" ")
		w.column++
	}
	w.WriteString(word)
	w.column += len(word)
}

func (w *shapeWriter) newLine() {
	w.WriteString("\n" + strings.Repeat("  ", w.depth))
	w.column = 2 * w.depth
}

// object writes the fields of a struct, first those without fields of their own.
func (w *shapeWriter) object(t reflect.Type, name string) {
	if place, there := w.printed[t]; there {
		w.put(place)
		return
	}
	w.printed[t] = fmt.Sprintf("as in %q", name)
	names, inner := fields(t)
	w.put("{")
	w.depth++
	for i, name := range names {
		if i > 0 {
			w.WriteString(",")
			w.column++
		}
		of, open, end := inner[name], "", ""
		for ; of != nil && of.Kind() != reflect.Struct; of = of.Elem() {
			if of.Kind() == reflect.Slice {
				open, end = open+"[", end+"]"
			}
		}
		if of == nil {
			w.put(fmt.Sprintf("%q", name))
			continue
		}
		if i > 0 {
			w.newLine()
		}
		w.put(fmt.Sprintf("%q: %s", name, open))
		w.object(of, name)
		w.put(end)
	}
	w.depth--
	w.put("}")
}

// fields returns the JSON names of a struct's fields. Those with fields of their own come last, and
// inner has their types.
func fields(t reflect.Type) (names []string, inner map[string]reflect.Type) {
	var last []string
	inner = map[string]reflect.Type{}
	for _, f := range cli.JSONFields(t) {
		of := f.Type
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && !of.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			last, inner[f.Name] = append(last, f.Name), f.Type
		} else {
			names = append(names, f.Name)
		}
	}
	return append(names, last...), inner
}
