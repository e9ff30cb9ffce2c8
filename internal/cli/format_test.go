package cli

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// A template takes the names of fields in JSON and those in Go, wherever a field can be.
func TestFormatTakesNamesOfJSON(t *testing.T) {
	j := machine.Job{Name: "train", State: machine.Running, Labels: map[string]string{"state": "mine"}, Created: time.Unix(1e9, 0).UTC(), Exit: &machine.Exit{Status: 7},
		Devices:   []machine.Device{{Device: 0, Used: 1 << 30}, {Device: 1, Used: 2 << 30}},
		Processes: []machine.Process{{Name: "python", HostPID: 12, Holdings: []machine.Holding{{DriverNow: true}}}}}
	for format, want := range map[string]string{
		"{{.job}} {{.Name}} {{.state}}":                                                                                  "train train running",
		"{{json .created_at}} {{.exit.status}} {{len .processes}}":                                                       `"2001-09-09T01:46:40Z" 7 1`,
		"{{(index .devices 1).used | bytes}}":                                                                            "2 GiB",
		"{{range .devices}}{{.device}}={{bytes .used}} {{else}}none{{end}}":                                              "0=1 GiB 1=2 GiB ",
		"{{range .reaped}}{{.pid}}{{else}}{{.job}}{{end}}":                                                               "train",
		"{{range $i, $p := .processes}}{{$.job}}: {{$p.name}} {{$p.host_pid}}{{end}}":                                    "train: python 12",
		"{{with .exit}}{{.status}}{{end}}{{if .exit_unknown}}?{{else if .died}}!{{end}}":                                 "7",
		`{{define "p"}}{{.name}}:{{(index .holdings 0).driver_now}}{{end}}{{range .processes}}{{template "p" .}}{{end}}`: "python:true",
		`{{block "b" .exit}}{{.status}}{{end}}{{"{{.job}}"}} .job`:                                                       "7{{.job}} .job",
		"{{/* nothing */}}":                   "",
		" ":                                   " ",
		"{{.Title}} {{.job | printf \"%q\"}}": `train "train"`,
		`{{index .labels "state"}}`:           "mine",
	} {
		parsed, err := parseJobTemplate(format)
		expect.OK(t, err, format)
		var out bytes.Buffer
		expect.OK(t, (&app{out: newTerminal(&out)}).printEach([]machine.Job{j}, parsed), format)
		expect.Equal(t, out.String(), want+"\n", format)
	}
	for _, format := range []string{"{{.nope}}", "{{.exit.nope}}", "{{range .processes}}{{.job_id}}{{end}}"} {
		_, err := parseJobTemplate(format)
		expect.True(t, err != nil && strings.HasPrefix(err.Error(), "--format: no field ") && !strings.Contains(err.Error(), "machine."), format, err)
	}
}

// Every field of a job and of what it contains has one Go name for its JSON name.
func TestFormatNamesAreUnambiguous(t *testing.T) {
	names := goNames(reflect.TypeFor[machine.Job]())
	full := reflect.New(reflect.TypeFor[machine.Job]()).Elem()
	fill(full, 0)
	var check func(reflect.Value)
	check = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			check(v.Elem())
		case reflect.Slice:
			check(v.Index(0))
		case reflect.Map:
			t.Error("a map, whose keys could look like names of fields:", v.Type())
		case reflect.Struct:
			for _, f := range JSONFields(v.Type()) {
				expect.Equal(t, names[f.Name], f.StructField.Name, v.Type(), f.Name)
				if f.Name != "labels" { // keys are looked up with index
					check(v.FieldByIndex(f.Index))
				}
			}
		}
	}
	check(full)
}
