// Command image packs the image of the kubelet plugin, for all processors that it was built for, and
// prints its digest. SOURCE_DATE_EPOCH is the time of all its files.
//
//	image VERSION COMMIT OUT ARCH=ROOT=GLIBC...
//
// ROOT is the folder with the files of the image for ARCH, and GLIBC is the package URL of the C library
// in it. deploy/stage-image makes them.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ration/deploy/oci"
)

const (
	name    = "ration-kubelet-plugin"
	program = "usr/bin/" + name
	sbom    = "usr/share/doc/ration/sbom.spdx.json"
)

// The forms of the statements, as URIs.
const (
	kindSBOM       = "https://spdx.dev/Document"
	kindProvenance = "https://slsa.dev/provenance/v1"
)

type object = map[string]any

// build is what an image is made of.
type build struct {
	version, commit string
	at              time.Time
}

// labels says the same in each image, and in the index of all.
func (b build) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       name,
		"org.opencontainers.image.description": "ration's driver for Dynamic Resource Allocation on a node of Kubernetes",
		"org.opencontainers.image.version":     b.version,
		"org.opencontainers.image.revision":    b.commit,
		"org.opencontainers.image.created":     b.at.UTC().Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0 AND LGPL-2.1-or-later",
		"org.opencontainers.image.vendor":      "The ration authors",
	}
}

// tag returns the version as a tag of a registry, which cannot have a plus sign. Helm writes it so, too.
func (b build) tag() string { return strings.ReplaceAll(b.version, "+", "_") }

// image returns the image of a root folder.
func (b build) image(arch, root, glibc string) (oci.Image, error) {
	i := oci.Image{Architecture: arch, Entrypoint: []string{"/" + program}, Labels: b.labels()}
	var err error
	if i.Files, err = oci.Tree(root); err != nil {
		return i, err
	}
	document, err := os.ReadFile(filepath.Join(root, sbom))
	if err != nil {
		return i, err
	}
	info, err := buildinfo.ReadFile(filepath.Join(root, program))
	if err != nil {
		return i, fmt.Errorf("reading how the plugin was built: %w", err)
	}
	i.Statements = []oci.Statement{{Kind: kindSBOM, Text: document}, {Kind: kindProvenance, Text: b.provenance(arch, glibc, info.GoVersion)}}
	return i, nil
}

// provenance says from what and how an image was built. Nobody has signed it: what shows that it is true is
// to build the same digest again.
func (b build) provenance(arch, glibc, goVersion string) json.RawMessage {
	text, err := json.Marshal(object{
		"buildDefinition": object{
			"buildType":          "urn:ration:make-image:1",
			"externalParameters": object{"command": "make image", "version": b.version, "architecture": arch},
			"resolvedDependencies": []object{
				{"name": "source", "digest": map[string]string{"gitCommit": b.commit}},
				{"name": "go", "uri": "pkg:golang/toolchain@" + goVersion},
				{"name": "glibc", "uri": glibc},
			},
		},
		"runDetails": object{"builder": object{"id": "urn:ration:deploy/image"}, "metadata": object{"startedOn": b.at.UTC().Format(time.RFC3339)}},
	})
	if err != nil {
		panic(err) // only what is above is encoded
	}
	return text
}

func run(args []string) error {
	if len(args) < 4 {
		return fmt.Errorf("usage: image VERSION COMMIT OUT ARCH=ROOT=GLIBC")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	b := build{version: args[0], commit: args[1], at: time.Unix(seconds, 0)}
	a := oci.Archive{Name: "localhost/" + name + ":" + b.tag(), Created: b.at, Annotations: b.labels()}
	for _, arg := range args[3:] {
		parts := strings.SplitN(arg, "=", 3)
		if len(parts) < 3 {
			return fmt.Errorf("%s is not ARCH=ROOT=GLIBC", arg)
		}
		i, err := b.image(parts[0], parts[1], parts[2])
		if err != nil {
			return err
		}
		a.Images = append(a.Images, i)
	}
	digest, err := a.Write(args[2])
	if err != nil {
		return err
	}
	fmt.Println(digest)
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
