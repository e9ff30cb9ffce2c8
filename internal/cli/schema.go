package cli

import (
	_ "embed" // the descriptions
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// schemaDialect is the version of JSON Schema in which ration schema describes JSON.
const schemaDialect = "https://json-schema.org/draft/2020-12/schema"

// descriptions are the comments of the types that commands print, and of their fields, by
// machine.Job and machine.Job.Name. ration-man copies them from the source.
var (
	//go:embed descriptions.json
	descriptionsFile []byte
	descriptions     = sync.OnceValue(func() (all map[string]string) {
		if err := json.Unmarshal(descriptionsFile, &all); err != nil {
			panic(err) // it is part of this program
		}
		return all
	})
)

// Schemas is what `ration schema --json` prints.
type Schemas struct {
	Commands []string `json:"commands"` // commands that print JSON
}

// Schema is a JSON Schema, with the keywords that the output of ration needs.
type Schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Ref         string             `json:"$ref,omitempty"`
	Type        any                `json:"type,omitempty"` // a name, or a list of names
	Format      string             `json:"format,omitempty"`
	Minimum     *int               `json:"minimum,omitempty"`
	Items       *Schema            `json:"items,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Values      *Schema            `json:"additionalProperties,omitempty"` // of a map
	AnyOf       []*Schema          `json:"anyOf,omitempty"`
	Defs        map[string]*Schema `json:"$defs,omitempty"` // by the name of the Go type
}

// dryRun ends the name of a command that prints something else with --dry-run.
const dryRun = " --dry-run"

func newSchemaCommand(a *app) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "schema [COMMAND]",
		Short: "Print the JSON Schema of a command's JSON",
		Long: `Print the JSON Schema (draft 2020-12) of the JSON value that a command prints
with --json. Without COMMAND, list the commands that have one.

ration events, and ration ps --watch, print one such value on each line. The
JSON of ration run is the one of --summary. A later version may add fields, so a
schema permits fields that it does not name. A list that is empty may be null.

Exit status: 0; 2 for a command that prints no JSON.`,
		Example: `  ration schema
  ration schema ps
  ration schema policy show > policy-show.schema.json`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, name := range schemaCommands() {
				words := strings.Fields(name)
				if len(words) > len(args) && slices.Equal(words[:len(args)], args) && strings.HasPrefix(words[len(args)], prefix) {
					out = append(out, words[len(args)])
				}
			}
			return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				names := schemaCommands()
				return a.print(Schemas{names}, func() { a.out.printf("%s\n", strings.Join(names, "\n")) })
			}
			name := strings.TrimPrefix(strings.Join(args, " "), "ration ")
			if dry {
				name += dryRun
			}
			value, there := outputs[name]
			if !there {
				return usageError("%q: no command of this name prints JSON (ration schema lists those that do)", name)
			}
			return a.out.printJSON(schemaOf(name, reflect.TypeOf(value)))
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "of what the command prints with --dry-run")
	return cmd
}

// schemaCommands returns the commands that print JSON, sorted.
func schemaCommands() []string { return slices.Sorted(maps.Keys(outputs)) }

// schemaOf returns the schema of a type that a command prints.
func schemaOf(command string, t reflect.Type) *Schema {
	defs := map[string]*Schema{}
	s := describe(t, defs)
	s.Dialect, s.Title, s.Defs = schemaDialect, "ration "+command, defs
	return s
}

// describe returns the schema of a type as encoding/json writes it. It adds named structs to defs.
func describe(t reflect.Type, defs map[string]*Schema) *Schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return &Schema{Type: "string", Format: "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return &Schema{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return &Schema{Type: "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &Schema{Type: "integer", Minimum: new(int)}
	case reflect.Float32, reflect.Float64:
		return &Schema{Type: "number"}
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Pointer:
		return describe(t.Elem(), defs)
	case reflect.Slice, reflect.Array:
		return &Schema{Type: "array", Items: describe(t.Elem(), defs)}
	case reflect.Map:
		return &Schema{Type: "object", Values: describe(t.Elem(), defs)}
	case reflect.Struct:
		if t.Name() == "" {
			return describeStruct(t, defs)
		}
		if _, there := defs[t.String()]; !there {
			defs[t.String()] = nil // a type may contain itself
			defs[t.String()] = describeStruct(t, defs)
		}
		return &Schema{Ref: "#/$defs/" + t.String()}
	}
	panic(fmt.Sprintf("no JSON Schema for %v", t)) // a test describes all outputs
}

func describeStruct(t reflect.Type, defs map[string]*Schema) *Schema {
	s := &Schema{Description: descriptions()[t.String()], Type: "object", Properties: map[string]*Schema{}}
	for _, f := range JSONFields(t) {
		field := describe(f.Type, defs)
		if !f.Optional {
			s.Required = append(s.Required, f.Name)
			field = orNull(field, f.Type.Kind())
		}
		field.Description = descriptions()[f.Key()]
		s.Properties[f.Name] = field
	}
	return s
}

// orNull permits null where encoding/json writes it: for a field that is nil and not omitted.
func orNull(s *Schema, kind reflect.Kind) *Schema {
	switch {
	case kind != reflect.Pointer && kind != reflect.Slice && kind != reflect.Map:
		return s
	case s.Ref != "":
		return &Schema{AnyOf: []*Schema{s, {Type: "null"}}}
	}
	s.Type = []string{s.Type.(string), "null"}
	return s
}

// JSONField is a field of a struct, as encoding/json writes it.
type JSONField struct {
	reflect.StructField
	Name     string // in JSON
	Optional bool   // omitted if it is empty
	Struct   reflect.Type
}

// Key returns the field's name with its type, as in machine.Job.Name.
func (f *JSONField) Key() string { return f.Struct.String() + "." + f.StructField.Name }

// JSONFields returns the fields of a struct that are in its JSON, with those of embedded structs.
func JSONFields(t reflect.Type) (out []JSONField) {
	own := map[string]bool{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			own[name] = true
		}
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			for _, inner := range JSONFields(f.Type) {
				if !own[inner.Name] {
					out = append(out, inner)
				}
			}
		case name != "" && name != "-":
			out = append(out, JSONField{f, name, strings.Contains(options, "omit"), t})
		}
	}
	return out
}
