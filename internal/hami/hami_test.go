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

	"ration/check/expect"
	"ration/internal/limit"
)

var update = flag.Bool("update", false, "write what Convert returns to testdata")

// Each file of testdata has a manifest, what it becomes, and the notes with their lines; those of objects that stayed as they
// were begin with a minus.
func TestConvert(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	expect.Must(t, err == nil && len(files) != 0, files, err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			expect.OK(t, err)
			in, want, notes := &archive.Files[0], &archive.Files[1], &archive.Files[2]
			var o Options
			if strings.Contains(string(archive.Comment), "80 GiB") {
				o.DeviceMemory = 80 * limit.GiB
			}
			out, got, err := (&Converter{Options: o}).Convert(in.Data)
			expect.OK(t, err)
			var lines strings.Builder
			for _, n := range got {
				if n.Failed {
					lines.WriteString("- ")
				}
				fmt.Fprintf(&lines, "%d: %s\n", n.Line, n)
			}
			if *update {
				want.Data, notes.Data = out, []byte(lines.String())
				expect.OK(t, os.WriteFile(file, txtar.Format(archive), 0o644))
			}
			expect.True(t, string(out) == string(want.Data) && lines.String() == string(notes.Data),
				out, lines.String(), want.Data, notes.Data)
			// What is converted is not converted again.
			again, _, err := (&Converter{Options: o}).Convert(out)
			expect.True(t, err == nil && string(again) == string(out), "again it is", err, again)
		})
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, in := range []string{"a: [\n", "kind: Pod\n---\na: [\n"} {
		out, _, err := new(Converter).Convert([]byte(in))
		expect.True(t, err != nil && strings.Contains(err.Error(), "line"), out, err)
	}
}

// Whatever the manifest is, nothing of HAMi disappears without a claim or a note.
func FuzzConvert(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		expect.OK(f, err)
		f.Add(archive.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, notes, err := new(Converter).Convert(in)
		if err != nil {
			return
		}
		var n yaml.Node
		expect.True(t, len(out) == 0 || yaml.Unmarshal(out, &n) == nil, in, "becomes what is not YAML", out)
		expect.True(t, strings.Count(string(out), resourceMemory) >= strings.Count(string(in), resourceMemory) || strings.Contains(string(out), "ResourceClaimTemplate") || len(notes) != 0,
			in, "was dropped")
	})
}
