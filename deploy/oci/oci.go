// Package oci writes container images, in the layout of the Open Container Initiative, without a
// daemon and without a registry. The same files and settings make the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Media types of the Open Container Initiative, and of statements in the form of in-toto.
const (
	typeIndex     = "application/vnd.oci.image.index.v1+json"
	typeManifest  = "application/vnd.oci.image.manifest.v1+json"
	typeConfig    = "application/vnd.oci.image.config.v1+json"
	typeLayer     = "application/vnd.oci.image.layer.v1.tar+gzip"
	typeStatement = "application/vnd.in-toto+json"
)

// Archive is a tar file with an image for one or several processors.
type Archive struct {
	Name        string    // what it is called where it is imported, as registry.example/name:tag
	Created     time.Time // of the image and of all its files
	Annotations map[string]string
	Images      []Image
}

// Image is the image for one processor.
type Image struct {
	Architecture string // as Go calls it
	Files        []File
	Entrypoint   []string
	Labels       map[string]string
	Statements   []Statement // about this image
}

// File is a file of an image.
type File struct {
	From, To string // a path of this machine, and the path in the image
	Link     string // instead of From: what a symbolic link is to
}

// Statement is what somebody says about an image, such as what it is made of. Kind is the URI of its form.
type Statement struct {
	Kind string
	Text json.RawMessage
}

// object is an object in JSON. Its fields are written in the order of their names.
type object = map[string]any

// layout collects the blobs of an image layout.
type layout struct {
	blobs map[string][]byte // by digest
	order []string
}

// Write writes an archive, which `ctr images import`, `podman load` and `skopeo copy oci-archive:` read, and
// returns the digest by which a registry will know it.
func (a Archive) Write(path string) (string, error) {
	l := &layout{blobs: map[string][]byte{}}
	var images, statements []any
	for _, i := range a.Images {
		image, err := l.image(i, a.Created)
		if err != nil {
			return "", fmt.Errorf("making image %s for %s: %w", a.Name, i.Architecture, err)
		}
		images = append(images, image)
		if len(i.Statements) > 0 {
			statements = append(statements, l.statements(i.Statements, a.Name, image["digest"].(string)))
		}
	}
	index := object{"schemaVersion": 2, "mediaType": typeIndex, "manifests": append(images, statements...)}
	if len(a.Annotations) > 0 {
		index["annotations"] = a.Annotations
	}
	top := l.add(typeIndex, encode(index))
	digest := top["digest"].(string)
	top["annotations"] = map[string]string{"io.containerd.image.name": a.Name}
	text, err := l.tar(top)
	if err != nil {
		return "", fmt.Errorf("making image %s: %w", a.Name, err)
	}
	return digest, os.WriteFile(path, text, 0o644)
}

// image adds the image for one processor and returns its descriptor.
func (l *layout) image(i Image, created time.Time) (object, error) {
	unpacked, packed, err := layer(i.Files, created)
	if err != nil {
		return nil, err
	}
	at := created.UTC().Format(time.RFC3339)
	config := object{
		"architecture": i.Architecture, "os": "linux", "created": at,
		"config":  object{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/usr/bin:/bin"}, "Labels": i.Labels},
		"rootfs":  object{"type": "layers", "diff_ids": []string{digest(unpacked)}},
		"history": []object{{"created": at, "created_by": "make image"}},
	}
	manifest := object{"schemaVersion": 2, "mediaType": typeManifest,
		"config": l.add(typeConfig, encode(config)), "layers": []any{l.add(typeLayer, packed)}}
	d := l.add(typeManifest, encode(manifest))
	d["platform"] = object{"architecture": i.Architecture, "os": "linux"}
	return d, nil
}

// statements adds an image's statements and returns the descriptor of their manifest. It is the form that
// BuildKit gave them, which registries and scanners know: a manifest in the index for no processor, which
// says which image it is about.
func (l *layout) statements(list []Statement, name, about string) object {
	subject := []object{{"name": name, "digest": map[string]string{"sha256": about[len("sha256:"):]}}}
	var layers []any
	for _, s := range list {
		d := l.add(typeStatement, encode(object{"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": s.Kind, "predicate": s.Text}))
		d["annotations"] = map[string]string{"in-toto.io/predicate-type": s.Kind}
		layers = append(layers, d)
	}
	config := object{"architecture": "unknown", "os": "unknown", "config": object{}, "rootfs": object{"type": "layers", "diff_ids": []string{}}} // they are no layers of a file system
	d := l.add(typeManifest, encode(object{"schemaVersion": 2, "mediaType": typeManifest, "config": l.add(typeConfig, encode(config)), "layers": layers}))
	d["platform"] = object{"architecture": "unknown", "os": "unknown"}
	d["annotations"] = map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": about}
	return d
}

// add adds a blob and returns its descriptor.
func (l *layout) add(kind string, text []byte) object {
	d := digest(text)
	if _, ok := l.blobs[d]; !ok {
		l.blobs[d] = text
		l.order = append(l.order, d)
	}
	return object{"mediaType": kind, "digest": d, "size": len(text)}
}

// tar returns the layout as a tar file whose only entry is top.
func (l *layout) tar(top object) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(name string, text []byte) error {
		return add(w, tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}, text)
	}
	err := put("oci-layout", encode(object{"imageLayoutVersion": "1.0.0"}))
	if err == nil {
		err = put("index.json", encode(object{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []any{top}}))
	}
	for _, d := range l.order {
		if err == nil {
			err = put("blobs/sha256/"+d[len("sha256:"):], l.blobs[d])
		}
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // only what is above is encoded
	}
	return text
}

func digest(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }
