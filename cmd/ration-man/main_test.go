package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
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
	if err != nil {
		t.Fatal(err)
	}
	for _, unwanted := range []string{"github.com/spf13/cobra/doc", "blackfriday", "go-md2man"} {
		if strings.Contains(string(out), unwanted) {
			t.Errorf("ration depends on %s", unwanted)
		}
	}
	if !strings.Contains(string(out), "ration/internal/cli\n") {
		t.Errorf("got %s", out)
	}
}
