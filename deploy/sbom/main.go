// Command sbom writes what a package of ration is made of, as an SPDX 2.3 document on
// standard output: the modules that are compiled into the program, as the program itself
// records them, Go's own library, the C parts, and the C library that they need.
//
//	sbom VERSION ARCH GLIBC PROGRAM [FILE...]
//
// GLIBC is the oldest version that they need or, where the C library is shipped with them, its package URL.
// SOURCE_DATE_EPOCH is the time in the document, so that two builds write the same bytes. That is why
// no other generator is used: cyclonedx-gomod writes the time of the day, and knows no C parts.
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
	"strings"
	"time"
)

// object is an object of the document. Its fields are written in the order of their names.
type object map[string]any

// document collects the elements, each of which the first package has a relationship to.
type document struct {
	packages, files, relationships []object
}

const (
	none  = "NOASSERTION"
	first = "SPDXRef-Package-ration"
)

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func (d *document) relate(from, kind string, to any) {
	d.relationships = append(d.relationships, object{"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

// addPackage adds a package; kind is how the first one needs it.
func (d *document) addPackage(name, version, license, purl, comment, kind string) {
	p := object{"name": name, "SPDXID": "SPDXRef-Package-" + notInID.ReplaceAllString(name, "-"), "versionInfo": version,
		"downloadLocation": none, "filesAnalyzed": false, "licenseConcluded": license, "licenseDeclared": license, "copyrightText": none,
		"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}}}
	if comment != "" {
		p["comment"] = comment
	}
	d.packages = append(d.packages, p)
	if kind != "" {
		d.relate(first, kind, p["SPDXID"])
	}
}

// addFile adds a file of the package, and returns its SHA-256.
func (d *document) addFile(path string) (sum string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	name := filepath.Base(path)
	sum = fmt.Sprintf("%x", sha256.Sum256(data))
	f := object{"fileName": "./" + name, "SPDXID": "SPDXRef-File-" + notInID.ReplaceAllString(name, "-"), "fileTypes": []string{"BINARY"},
		"licenseConcluded": "Apache-2.0", "copyrightText": none, "checksums": []object{
			{"algorithm": "SHA1", "checksumValue": fmt.Sprintf("%x", sha1.Sum(data))}, {"algorithm": "SHA256", "checksumValue": sum}}}
	d.files = append(d.files, f)
	d.relate(first, "CONTAINS", f["SPDXID"])
	return sum, nil
}

// makeDocument describes a program, the modules that are linked into it, and the files that are
// shipped with it.
func makeDocument(version, arch, glibc, program string, files []string, at time.Time) (object, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("reading how %s was built: %w", program, err)
	}
	d := &document{}
	d.addPackage("ration", version, "Apache-2.0", "pkg:generic/ration@"+version+"?arch="+arch, "", "")
	d.relate("SPDXRef-DOCUMENT", "DESCRIBES", first)
	d.addPackage("std", info.GoVersion, "BSD-3-Clause", "pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go"), "", "STATIC_LINK")
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.addPackage(m.Path, m.Version, none, "pkg:golang/"+m.Path+"@"+m.Version, "go.sum: "+m.Sum, "STATIC_LINK")
	}
	if _, exact, ok := strings.Cut(glibc, "@"); ok {
		d.addPackage("glibc", exact, "LGPL-2.1-or-later", glibc, "", "CONTAINS")
	} else if glibc != "" {
		d.addPackage("glibc", glibc+" or newer", none, "pkg:generic/glibc@"+glibc, "", "DYNAMIC_LINK")
	}
	sum, err := d.addFile(program)
	for _, path := range files {
		if err == nil {
			_, err = d.addFile(path)
		}
	}
	if err != nil {
		return nil, err
	}
	name := "ration-" + version + "-linux-" + arch
	return object{"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": "https://spdx.org/spdxdocs/" + name + "-" + sum[:16], // must be unique: it follows from the program's bytes
		"creationInfo":      object{"created": at.UTC().Format(time.RFC3339), "creators": []string{"Tool: ration-sbom", "Organization: The ration authors"}},
		"packages":          d.packages, "files": d.files, "relationships": d.relationships}, nil
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
