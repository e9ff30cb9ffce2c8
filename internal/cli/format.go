package cli

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/machine"
)

// parseJobTemplate parses --format. It returns nil for an empty text.
func parseJobTemplate(text string) (*template.Template, error) {
	if text == "" {
		return nil, nil
	}
	t, err := template.New("--format").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			err := enc.Encode(v)
			return strings.TrimSuffix(out.String(), "\n"), err
		},
		"bytes": humanfmt.Bytes,
		"join":  strings.Join,
	}).Parse(strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)) // as in docker ps
	if err == nil {
		for _, each := range t.Templates() { // t itself, and those that it defines
			renameFields(each.Root, goNames(reflect.TypeFor[machine.Job]()))
		}
		// This finds an unknown field before any job is read.
		err = t.Execute(new(bytes.Buffer), &machine.Job{Exit: &machine.Exit{}, Command: []string{""}, Devices: slices.Repeat([]machine.Device{{Compute: &machine.Compute{}}}, abi.Devices),
			Kubernetes: &machine.Kubernetes{Pods: []machine.Pod{{}}},
			Processes:  []machine.Process{{Holdings: []machine.Holding{{Compute: &machine.ProcessCompute{}, Time: &machine.Time{}}}}},
			Refusals:   []machine.Refusal{{Top: []machine.Holder{{}}}}, Deaths: []machine.Death{{Held: []machine.DeathHeld{{}}}}})
	}
	if err != nil {
		return nil, usageError("%s (see ration ps --help)", templateText(err))
	}
	return t, nil
}

// templateText says what is wrong with a template, without Go's names for it.
func templateText(err error) string {
	_, field, is := strings.Cut(err.Error(), "can't evaluate field ")
	if field, _, cut := strings.Cut(field, " "); is && cut {
		return "--format: no field " + field + " there"
	}
	return strings.TrimPrefix(err.Error(), "template: ")
}

// goNames returns the Go names of a type's fields by their JSON names, with those of the types that
// it contains. No two of a job's types have the same JSON name for different Go names; a test
// checks this.
func goNames(t reflect.Type) map[string]string {
	names := map[string]string{}
	var add func(reflect.Type)
	add = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
			return
		}
		for _, f := range JSONFields(t) {
			names[f.Name] = f.StructField.Name
			add(f.Type)
		}
	}
	add(t)
	return names
}

// renameFields replaces JSON names of fields in a template by Go names, which package template
// looks up. Other names stay.
func renameFields(node parse.Node, names map[string]string) {
	rename := func(fields []string) {
		for i, f := range fields {
			if name, there := names[f]; there {
				fields[i] = name
			}
		}
	}
	branch := func(b *parse.BranchNode) {
		renameFields(b.Pipe, names)
		renameFields(b.List, names)
		renameFields(b.ElseList, names)
	}
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil { // there is no else
			for _, inner := range n.Nodes {
				renameFields(inner, names)
			}
		}
	case *parse.ActionNode:
		renameFields(n.Pipe, names)
	case *parse.TemplateNode:
		renameFields(n.Pipe, names)
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.PipeNode:
		if n != nil { // {{template "name"}} has none
			for _, c := range n.Cmds {
				renameFields(c, names)
			}
		}
	case *parse.CommandNode:
		for _, argument := range n.Args {
			renameFields(argument, names)
		}
	case *parse.FieldNode:
		rename(n.Ident)
	case *parse.VariableNode:
		rename(n.Ident[1:]) // after the variable's own name
	case *parse.ChainNode:
		renameFields(n.Node, names)
		rename(n.Field)
	}
}
