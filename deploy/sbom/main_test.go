package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
)

// The document of this test, which is a Go program like another, is read as a tool would: by the names
// that SPDX 2.3 requires.
func TestDocument(t *testing.T) {
	program, err := os.Executable()
	expect.OK(t, err)
	library := filepath.Join(t.TempDir(), "libration.so")
	expect.OK(t, os.WriteFile(library, []byte("a library"), 0o600))
	d, err := makeDocument("0.2.0", "amd64", "2.17", program, []string{library}, time.Unix(1, 0))
	expect.OK(t, err)
	text, err := json.Marshal(d)
	expect.OK(t, err)
	for _, want := range []string{`"spdxVersion":"SPDX-2.3"`, `"dataLicense":"CC0-1.0"`, `"SPDXID":"SPDXRef-DOCUMENT"`, `"name":"ration-0.2.0-linux-amd64"`,
		`"created":"1970-01-01T00:00:01Z"`, `"documentNamespace":"https://`, `"name":"ration"`, `"name":"std"`, `"name":"glibc"`,
		fmt.Sprintf(`"checksumValue":"%x"`, sha256.Sum256([]byte("a library")))} {
		expect.True(t, strings.Contains(string(text), want), want, "is not in", text)
	}
	// Every element has an ID of its own, and a relationship to it.
	ids := map[any]bool{"SPDXRef-DOCUMENT": true}
	form := regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`)
	collect := func(elements any, required ...string) {
		t.Helper()
		for _, element := range elements.([]object) {
			for _, field := range required {
				expect.True(t, element[field] != nil && element[field] != "", element, "has no", field)
			}
			id := element["SPDXID"]
			expect.True(t, form.MatchString(id.(string)) && !ids[id], "the ID", id, "has a wrong form, or is another's")
			ids[id] = true
		}
	}
	collect(d["packages"], "name", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText")
	collect(d["files"], "fileName", "checksums", "licenseConcluded", "copyrightText")
	related := map[any]bool{}
	for _, r := range d["relationships"].([]object) {
		from, to := r["spdxElementId"], r["relatedSpdxElement"]
		expect.True(t, ids[from] && ids[to] && r["relationshipType"] != "", r, "leads nowhere")
		related[to] = true
	}
	expect.Equal(t, len(related), len(ids)-1, "elements are related to the package")
}

// A C library that is shipped is a part of the package, by its exact version; one of the machine is only needed.
func TestCLibrary(t *testing.T) {
	program, err := os.Executable()
	expect.OK(t, err)
	for glibc, want := range map[string][3]string{
		"2.17":                        {"2.17 or newer", "pkg:generic/glibc@2.17", "DYNAMIC_LINK"},
		"pkg:deb/debian/libc6@2.36-9": {"2.36-9", "pkg:deb/debian/libc6@2.36-9", "CONTAINS"},
	} {
		d, err := makeDocument("0.2.0", "amd64", glibc, program, nil, time.Unix(1, 0))
		expect.OK(t, err)
		var got [3]string
		for _, p := range d["packages"].([]object) {
			if p["name"] == "glibc" {
				got[0], got[1] = p["versionInfo"].(string), p["externalRefs"].([]object)[0]["referenceLocator"].(string)
			}
		}
		for _, r := range d["relationships"].([]object) {
			if r["relatedSpdxElement"] == "SPDXRef-Package-glibc" {
				got[2] = r["relationshipType"].(string)
			}
		}
		expect.Equal(t, got, want, glibc)
	}
}

// The document of the program that make builds has the modules of go.mod.
func TestProgram(t *testing.T) {
	const program = "../../bin/ration"
	_, err := os.Stat(program)
	testenv.Made(t, err)
	d, err := makeDocument("0.2.0", "amd64", "", program, nil, time.Unix(1, 0))
	expect.OK(t, err)
	mod, err := os.ReadFile("../../go.mod")
	expect.OK(t, err)
	missing := map[string]bool{"github.com/NVIDIA/go-nvml": true, "github.com/spf13/cobra": true, "golang.org/x/sys": true}
	for _, p := range d["packages"].([]object) {
		name, version := p["name"].(string), p["versionInfo"].(string)
		if !missing[name] {
			continue
		}
		delete(missing, name)
		if text := fmt.Sprint(p); !strings.Contains(string(mod), name+" "+version) || !strings.Contains(text, "pkg:golang/"+name+"@"+version) || !strings.Contains(text, "go.sum: h1:") {
			t.Errorf("got %s, which go.mod does not have", text)
		}
	}
	expect.True(t, len(missing) == 0, "the document lacks", missing)
}
