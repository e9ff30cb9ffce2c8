package main

import (
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"ration/check/expect"
	"ration/internal/cli"
	"ration/machine"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ration-man": main})
}

func TestPages(t *testing.T) { testscript.Run(t, testscript.Params{Dir: "testdata"}) }

// What renders pages is no part of ration itself: it would be set up at each of its starts.
func TestNotInRation(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "ration/cmd/ration")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	expect.OK(t, err)
	for _, unwanted := range []string{"github.com/spf13/cobra/doc", "blackfriday", "go-md2man"} {
		expect.True(t, !strings.Contains(string(out), unwanted), "ration depends on", unwanted)
	}
	expect.True(t, strings.Contains(string(out), "ration/internal/cli\n"), out)
}

// docs/commands.md is what the commands say now.
func TestCommandsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	expect.True(t, err == nil && string(page) == string(commandsPage(cli.ReferenceOf())),
		"docs/commands.md is not what the commands say (make generate writes it)", err)
}

// The shape of a JSON value has every field once, at the depth where it is.
func TestJSONShape(t *testing.T) {
	type inner struct {
		Bytes int       `json:"bytes"`
		At    time.Time `json:"at,omitzero"`
	}
	type base struct {
		Path string `json:"path"`
	}
	type outer struct {
		base
		Devices []*inner       `json:"devices"`
		First   *inner         `json:"first,omitempty"`
		Values  map[string]int `json:"values"`
		Names   []string       `json:"names"`
		_       int            // not exported, so not printed
		Skipped int            `json:"-"`
	}
	want := `    {"path", "values", "names",
      "devices": [{"bytes", "at"}],
      "first": as in "devices"}`
	expect.Equal(t, jsonShape(reflect.TypeFor[outer](), true), want)
	if got := jsonShape(reflect.TypeFor[struct {
		All []machine.Process `json:"all"`
	}](), false); got != `    {"all": [as in ration ps]}` {
		t.Errorf("got:\n%s", got)
	}
}
