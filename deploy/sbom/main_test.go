package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDocument describes this test, which is a Go program like another, and reads the
// document as a tool would: by the names that SPDX 2.3 requires.
func TestDocument(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), "libration.so")
	if err := os.WriteFile(library, []byte("a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := makeDocument("0.2.0", "amd64", "2.17", program, []string{library}, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "ration-0.2.0-linux-amd64"} {
		if got[field] != want {
			t.Errorf("%s is %v, want %s", field, got[field], want)
		}
	}
	if at := got["creationInfo"].(map[string]any); at["created"] != "1970-01-01T00:00:01Z" || len(at["creators"].([]any)) == 0 {
		t.Errorf("made %v", at)
	}
	if name, _ := got["documentNamespace"].(string); !strings.HasPrefix(name, "https://") || strings.Contains(name, "#") {
		t.Errorf("the namespace is %q", name)
	}

	// Everything has an ID of its own, and a relationship from the package.
	ids := []string{"SPDXRef-DOCUMENT"}
	form := regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`)
	collect := func(list any, required ...string) {
		t.Helper()
		for _, element := range list.([]any) {
			element := element.(map[string]any)
			for _, field := range required {
				if element[field] == nil || element[field] == "" {
					t.Errorf("%v has no %s", element, field)
				}
			}
			id := element["SPDXID"].(string)
			if !form.MatchString(id) || slices.Contains(ids, id) {
				t.Errorf("the ID %s has a wrong form, or is another's", id)
			}
			ids = append(ids, id)
		}
	}
	collect(got["packages"], "name", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText")
	collect(got["files"], "fileName", "checksums", "licenseConcluded", "copyrightText")
	var related []string
	for _, r := range d.Relationships {
		if !slices.Contains(ids, r.From) || !slices.Contains(ids, r.To) || r.Type == "" {
			t.Errorf("%v leads nowhere", r)
		}
		related = append(related, r.To)
	}
	for _, id := range ids[1:] {
		if !slices.Contains(related, id) {
			t.Errorf("%s is related to nothing", id)
		}
	}
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("a library")))
	if i := slices.IndexFunc(d.Files, func(f file) bool { return f.Name == "./libration.so" }); i < 0 || d.Files[i].Checksums[1] != (checksum{"SHA256", want}) {
		t.Errorf("the library's checksum is not in %v", d.Files)
	}
	for _, name := range []string{"ration", "std", "glibc"} {
		if !slices.ContainsFunc(d.Packages, func(p pkg) bool { return p.Name == name && p.Version != "" }) {
			t.Errorf("no package %s", name)
		}
	}
}

// TestProgram describes the program that make builds, whose modules go.mod names.
func TestProgram(t *testing.T) {
	const program = "../../bin/ration"
	if _, err := os.Stat(program); err != nil {
		t.Skipf("not built: %v (make builds it)", err)
	}
	d, err := makeDocument("0.2.0", "amd64", "", program, nil, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"github.com/NVIDIA/go-nvml", "github.com/spf13/cobra", "golang.org/x/sys"} {
		i := slices.IndexFunc(d.Packages, func(p pkg) bool { return p.Name == name })
		if i < 0 {
			t.Errorf("no package %s", name)
			continue
		}
		p := d.Packages[i]
		if !strings.Contains(string(mod), name+" "+p.Version) || p.Refs[0].Locator != "pkg:golang/"+name+"@"+p.Version || !strings.Contains(p.Comment, "h1:") {
			t.Errorf("got %+v, which go.mod does not have", p)
		}
	}
}
