package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
)

// The schema of every command describes the values of its type: an empty one, and one in which
// every field is set. A value that breaks a rule of the schema is found.
func TestSchemaDescribesEveryOutput(t *testing.T) {
	for name, value := range outputs {
		full := reflect.New(reflect.TypeOf(value)).Elem()
		fill(full, 0)
		for _, v := range []any{value, full.Interface()} {
			text, err := json.Marshal(v)
			expect.OK(t, err)
			expect.OK(t, checkSchema(name, text), name, string(text))
		}
	}
	const good = `{"version": "1", "region_version": 4, "go": "go1", "arch": "amd64"}`
	expect.OK(t, checkSchema("version", []byte(good)))
	for wrong, want := range map[string]string{
		strings.Replace(good, `"version": "1", `, "", 1): ".version: missing",
		strings.Replace(good, `"1"`, "1", 1):             ".version: 1 is not of type string",
		strings.Replace(good, "4", "4.5", 1):             ".region_version: 4.5 is not of type integer",
		strings.Replace(good, "}", `, "more": true}`, 1): ".more: the schema does not name it",
	} {
		expect.Equal(t, fmt.Sprint(checkSchema("version", []byte(wrong))), "ration version --json"+want, wrong)
	}
}

// Every command that takes --json for its own output is listed, under the name by which it is run.
func TestSchemaNamesCommands(t *testing.T) {
	for _, name := range schemaCommands() {
		name, dry := strings.CutSuffix(name, dryRun)
		c, rest, err := newRootCommand(&app{}).Find(strings.Fields(name))
		expect.True(t, err == nil && len(rest) == 0 && c.CommandPath() == "ration "+name, name)
		expect.True(t, err != nil || !dry || c.Flags().Lookup("dry-run") != nil, name)
	}
}

// fill sets every field of a value. A type that contains itself is filled to a depth.
func fill(v reflect.Value, depth int) {
	switch {
	case depth > 12:
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1e9, 0).UTC()))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth+1)
			}
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case v.Kind() == reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("0").Convert(v.Type().Key()), value)
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.CanInt():
		v.SetInt(-1)
	case v.CanUint():
		v.SetUint(1)
	case v.CanFloat():
		v.SetFloat(0.5)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	}
}

// envSchemaErrors names the file to which mainWithSchema writes.
const envSchemaErrors = "RATION_TEST_SCHEMA_ERRORS"

// mainWithSchema runs ration. What it prints with --json must match the command's schema: otherwise
// it fails, and makes a file that fails the test if the exit status is not looked at.
func mainWithSchema() int {
	args := os.Args[1:]
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	c, _, err := newRootCommand(&app{}).Find(args)
	name := strings.TrimPrefix(c.CommandPath(), "ration ")
	if _, there := outputs[name+dryRun]; there && slices.Contains(args, "--dry-run") {
		name += dryRun
	}
	if _, there := outputs[name]; err != nil || !there || !slices.Contains(args, "--json") || name == "run" {
		return Main(os.Args[1:], os.Stdout, os.Stderr)
	}
	if name == "schema" && args[len(args)-1] != name && args[len(args)-1] != "--json" {
		return Main(os.Args[1:], os.Stdout, os.Stderr) // it prints a schema
	}
	var printed bytes.Buffer
	status := Main(os.Args[1:], io.MultiWriter(os.Stdout, &printed), os.Stderr)
	if err := checkSchema(name, printed.Bytes()); err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		_ = os.WriteFile(os.Getenv(envSchemaErrors), []byte(err.Error()), 0o644) // there is no file outside scripts
		return 99
	}
	return status
}

// checkSchema checks JSON values, one after the other, by the schema of a command.
func checkSchema(command string, text []byte) error {
	schema, err := json.Marshal(schemaOf(command, reflect.TypeOf(outputs[command])))
	if err != nil {
		return err
	}
	var root map[string]any
	if err := json.Unmarshal(schema, &root); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var value any
		switch err := dec.Decode(&value); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := validate(root, root, value, "ration "+command+" --json"); err != nil {
			return err
		}
	}
}

// validate checks a value by a schema of root, and that the schema names all its fields. It panics
// for a keyword that it does not know.
func validate(root, schema map[string]any, value any, at string) error {
	for keyword, rule := range schema {
		var err error
		switch keyword {
		case "$schema", "$defs", "title", "description", "properties", "additionalProperties": // see object
		case "$ref":
			definition := root["$defs"].(map[string]any)[strings.TrimPrefix(rule.(string), "#/$defs/")]
			err = validate(root, definition.(map[string]any), value, at)
		case "type":
			err = validateType(rule, value, at)
		case "format":
			if _, wrong := time.Parse(time.RFC3339Nano, value.(string)); wrong != nil || rule != "date-time" {
				err = fmt.Errorf("%s: %v is not a %v", at, value, rule)
			}
		case "minimum":
			if n, isNumber := value.(float64); isNumber && n < rule.(float64) {
				err = fmt.Errorf("%s: %v is less than %v", at, value, rule)
			}
		case "items":
			list, _ := value.([]any)
			for i, v := range list {
				err = errors.Join(err, validate(root, rule.(map[string]any), v, fmt.Sprintf("%s[%d]", at, i)))
			}
		case "required":
			object, isObject := value.(map[string]any)
			for i, name := range rule.([]any) {
				if slices.Contains(rule.([]any)[:i], name) { // draft 2020-12 wants each once
					err = errors.Join(err, fmt.Errorf("%s.%s: required twice", at, name))
				}
				if _, there := object[name.(string)]; isObject && !there {
					err = errors.Join(err, fmt.Errorf("%s.%s: missing", at, name))
				}
			}
		case "anyOf":
			if !slices.ContainsFunc(rule.([]any), func(s any) bool { return validate(root, s.(map[string]any), value, at) == nil }) {
				err = fmt.Errorf("%s: %v is none of %v", at, value, rule)
			}
		default:
			panic("unknown keyword " + keyword)
		}
		if err != nil {
			return err
		}
	}
	object, _ := value.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	for name, v := range object {
		of, there := properties[name]
		if !there {
			of, there = schema["additionalProperties"]
		}
		switch {
		case there:
			if err := validate(root, of.(map[string]any), v, at+"."+name); err != nil {
				return err
			}
		case schema["type"] != nil:
			return fmt.Errorf("%s.%s: the schema does not name it", at, name)
		}
	}
	return nil
}

func validateType(rule, value any, at string) error {
	names, several := rule.([]any)
	if !several {
		names = []any{rule}
	}
	is := "null"
	switch v := value.(type) {
	case bool:
		is = "boolean"
	case string:
		is = "string"
	case []any:
		is = "array"
	case map[string]any:
		is = "object"
	case float64:
		is = "number"
		if v == math.Trunc(v) && slices.Contains(names, any("integer")) {
			is = "integer"
		}
	}
	if !slices.Contains(names, any(is)) {
		return fmt.Errorf("%s: %v is not of type %v", at, value, rule)
	}
	return nil
}
