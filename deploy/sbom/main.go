// Command sbom writes what a package of ration is made of, as an SPDX 2.3 document on
// standard output: the modules that are compiled into the program, as the program itself
// records them, Go's own library, the C parts, and the C library that they need.
//
//	sbom VERSION ARCH GLIBC PROGRAM [FILE...]
//
// The time of SOURCE_DATE_EPOCH is the document's, so that it does not differ between two
// builds.
package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

type document struct {
	SPDXVersion   string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []pkg          `json:"packages"`
	Files         []file         `json:"files"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	Name          string      `json:"name"`
	ID            string      `json:"SPDXID"`
	Version       string      `json:"versionInfo"`
	Download      string      `json:"downloadLocation"`
	FilesAnalyzed bool        `json:"filesAnalyzed"`
	License       string      `json:"licenseConcluded"`
	Declared      string      `json:"licenseDeclared"`
	Copyright     string      `json:"copyrightText"`
	Comment       string      `json:"comment,omitempty"`
	Refs          []reference `json:"externalRefs,omitempty"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type file struct {
	Name      string     `json:"fileName"`
	ID        string     `json:"SPDXID"`
	Types     []string   `json:"fileTypes"`
	Checksums []checksum `json:"checksums"`
	License   string     `json:"licenseConcluded"`
	Copyright string     `json:"copyrightText"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const none = "NOASSERTION"

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func id(kind, name string) string {
	return "SPDXRef-" + kind + "-" + notInID.ReplaceAllString(name, "-")
}

func newPackage(name, version, purl string) pkg {
	return pkg{Name: name, ID: id("Package", name), Version: version, Download: none, License: none, Declared: none, Copyright: none,
		Refs: []reference{{"PACKAGE-MANAGER", "purl", purl}}}
}

func readFile(path string) (file, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	name := filepath.Base(path)
	return file{Name: "./" + name, ID: id("File", name), Types: []string{"BINARY"}, License: "Apache-2.0", Copyright: none, Checksums: []checksum{
		{"SHA1", fmt.Sprintf("%x", sha1.Sum(data))}, {"SHA256", fmt.Sprintf("%x", sha256.Sum256(data))},
	}}, nil
}

// makeDocument describes a program and the files that are handed out in and beside it.
func makeDocument(version, arch, glibc, program string, files []string, at time.Time) (*document, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("reading how %s was built: %w", program, err)
	}
	d := &document{SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "ration-" + version + "-linux-" + arch,
		Creation: creation{at.UTC().Format(time.RFC3339), []string{"Tool: ration-sbom", "Organization: The ration authors"}}}

	ration := newPackage("ration", version, "pkg:generic/ration@"+version+"?arch="+arch)
	ration.License, ration.Declared = "Apache-2.0", "Apache-2.0"
	d.Packages = append(d.Packages, ration)
	d.relate(d.ID, "DESCRIBES", ration.ID)

	add := func(p pkg, how string) {
		d.Packages = append(d.Packages, p)
		d.relate(ration.ID, how, p.ID)
	}
	std := newPackage("std", info.GoVersion, "pkg:golang/std@"+info.GoVersion[len("go"):])
	std.License, std.Declared = "BSD-3-Clause", "BSD-3-Clause"
	add(std, "STATIC_LINK")
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		p := newPackage(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
		p.Comment = "go.sum: " + m.Sum
		add(p, "STATIC_LINK")
	}
	if glibc != "" {
		add(newPackage("glibc", glibc+" or newer", "pkg:generic/glibc@"+glibc), "DYNAMIC_LINK")
	}
	for _, path := range append([]string{program}, files...) {
		f, err := readFile(path)
		if err != nil {
			return nil, err
		}
		d.Files = append(d.Files, f)
		d.relate(ration.ID, "CONTAINS", f.ID)
	}
	// A document's name must be its own: it goes with the program's bytes.
	d.Namespace = "https://spdx.org/spdxdocs/" + d.Name + "-" + d.Files[0].Checksums[1].Value[:16]
	return d, nil
}

func (d *document) relate(from, how, to string) {
	d.Relationships = append(d.Relationships, relationship{from, how, to})
}

func run(args []string) error {
	if len(args) < 4 {
		return fmt.Errorf("usage: sbom VERSION ARCH GLIBC PROGRAM [FILE...]")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	d, err := makeDocument(args[0], args[1], args[2], args[3], args[4:], time.Unix(seconds, 0))
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(d)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}
