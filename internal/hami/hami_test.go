package hami

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"

	"ration/internal/limit"
)

var update = flag.Bool("update", false, "write what Convert returns to testdata")

// Each file of testdata has a manifest, what it becomes, and the notes with their lines; those of objects that stayed as they
// were begin with a minus.
func TestConvert(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, want, notes := &archive.Files[0], &archive.Files[1], &archive.Files[2]
			var o Options
			if strings.Contains(string(archive.Comment), "80 GiB") {
				o.DeviceMemory = 80 * limit.GiB
			}
			out, got, err := (&Converter{Options: o}).Convert(in.Data)
			if err != nil {
				t.Fatal(err)
			}
			var lines strings.Builder
			for _, n := range got {
				if n.Failed {
					lines.WriteString("- ")
				}
				fmt.Fprintf(&lines, "%d: %s\n", n.Line, n)
			}
			if *update {
				want.Data, notes.Data = out, []byte(lines.String())
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if string(out) != string(want.Data) || lines.String() != string(notes.Data) {
				t.Errorf("got\n%s\n%s\nwant\n%s\n%s", out, lines.String(), want.Data, notes.Data)
			}
			// What is converted is not converted again.
			if again, _, err := (&Converter{Options: o}).Convert(out); err != nil || string(again) != string(out) {
				t.Errorf("again it is %v\n%s", err, again)
			}
		})
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, in := range []string{"a: [\n", "kind: Pod\n---\na: [\n"} {
		if out, _, err := new(Converter).Convert([]byte(in)); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("got %s, %v", out, err)
		}
	}
}

// Whatever the manifest is, nothing of HAMi disappears without a claim or a note.
func FuzzConvert(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, notes, err := new(Converter).Convert(in)
		if err != nil {
			return
		}
		var n yaml.Node
		if len(out) > 0 && yaml.Unmarshal(out, &n) != nil {
			t.Errorf("%q becomes what is not YAML: %q", in, out)
		}
		if strings.Count(string(out), resourceMemory) < strings.Count(string(in), resourceMemory) && !strings.Contains(string(out), "ResourceClaimTemplate") && len(notes) == 0 {
			t.Errorf("%q was dropped", in)
		}
	})
}
