package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
)

// stage makes the root of an image whose plugin is this test, as deploy/stage-image does.
func stage(t *testing.T, mode os.FileMode) string {
	t.Helper()
	root := t.TempDir()
	self, err := os.Executable()
	expect.OK(t, err)
	text, err := os.ReadFile(self)
	expect.OK(t, err)
	for path, text := range map[string][]byte{program: text, sbom: []byte(`{"spdxVersion": "SPDX-2.3"}`), "lib/libc.so.6": []byte("a library")} {
		expect.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), mode|0o700))
		expect.OK(t, os.WriteFile(filepath.Join(root, path), text, mode))
	}
	expect.OK(t, os.Symlink("libc.so.6", filepath.Join(root, "lib/libc.so")))
	return root
}

// read returns the files of a tar file.
func read(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		expect.OK(t, err)
		text, err := io.ReadAll(r)
		expect.OK(t, err)
		if h.Typeflag == tar.TypeSymlink {
			text = []byte("to " + h.Linkname)
		}
		expect.True(t, h.Uid == 0 && h.Gid == 0 && (h.Typeflag == tar.TypeDir || files[h.Name] == nil), h.Name, h.Uid, h.Gid)
		files[h.Name] = text
	}
}

// descriptor is how one part of an image names another.
type descriptor struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// parts are the blobs of an image.
type parts struct {
	*testing.T
	files map[string][]byte
}

// get returns what a descriptor names, if it has the size and the digest that are said.
func (p parts) get(d descriptor, into any) []byte {
	p.Helper()
	text := p.files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
	expect.Must(p.T, text != nil && len(text) == d.Size && fmt.Sprintf("sha256:%x", sha256.Sum256(text)) == d.Digest, d, "is", len(text), "bytes")
	if into != nil {
		expect.OK(p.T, json.Unmarshal(text, into))
	}
	return text
}

type manifest struct {
	Config            descriptor
	Layers, Manifests []descriptor
	Annotations       map[string]string
}

// A registry finds the image of each processor, its files, and what is said about it; and two builds by users with
// different settings have the same digest.
func TestImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	const glibc = "pkg:deb/debian/libc6@2.36-9?arch=amd64"
	var digests [2]string
	for i, mode := range []os.FileMode{0o755, 0o700} {
		out := filepath.Join(t.TempDir(), "image.tar")
		expect.OK(t, run([]string{"0.2.0-dev.1+gabc", "0123abc", out, "amd64=" + stage(t, mode) + "=" + glibc, "arm64=" + stage(t, mode) + "=" + glibc}))
		text, err := os.ReadFile(out)
		expect.OK(t, err)
		digests[i] = fmt.Sprintf("%x", sha256.Sum256(text))
		if i == 0 {
			check(t, parts{t, read(t, bytes.NewReader(text))}, glibc)
		}
	}
	expect.Equal(t, digests[1], digests[0])
	expect.True(t, run([]string{"0.2.0", "0123abc", filepath.Join(t.TempDir(), "out"), "amd64=" + t.TempDir() + "=" + glibc}) != nil, "an image without a plugin")
}

func check(t *testing.T, p parts, glibc string) {
	t.Helper()
	var top, index manifest
	expect.OK(t, json.Unmarshal(p.files["index.json"], &top))
	expect.True(t, len(top.Manifests) == 1 && top.Manifests[0].Annotations["io.containerd.image.name"] == "localhost/ration-kubelet-plugin:0.2.0-dev.1_gabc", top)
	p.get(top.Manifests[0], &index)
	expect.Equal(t, index.Annotations["org.opencontainers.image.revision"], "0123abc")
	expect.Must(t, len(index.Manifests) == 4, index)
	for i, arch := range []string{"amd64", "arm64"} {
		d := index.Manifests[i]
		expect.Equal(t, d.Platform.Architecture+" "+d.Platform.OS, arch+" linux")
		var m manifest
		p.get(d, &m)
		var config struct {
			Architecture, Created string
			Config                struct {
				Entrypoint []string
				Labels     map[string]string
			}
			Rootfs struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		p.get(m.Config, &config)
		expect.Equal(t, config.Architecture+" "+config.Created, arch+" 2023-11-14T22:13:20Z")
		expect.Equal(t, config.Config.Labels["org.opencontainers.image.version"], "0.2.0-dev.1+gabc")
		z, err := gzip.NewReader(bytes.NewReader(p.get(m.Layers[0], nil)))
		expect.OK(t, err)
		layer, err := io.ReadAll(z)
		expect.OK(t, err)
		expect.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)), config.Rootfs.DiffIDs[0])
		files := read(t, bytes.NewReader(layer))
		expect.True(t, len(files[config.Config.Entrypoint[0][1:]]) > 0 && string(files["lib/libc.so.6"]) == "a library" && string(files["lib/libc.so"]) == "to libc.so.6",
			len(files), "files")
		about := index.Manifests[2+i]
		expect.True(t, about.Platform.Architecture == "unknown" && about.Annotations["vnd.docker.reference.digest"] == d.Digest, about)
		checkStatements(t, p, about, d.Digest, glibc)
	}
}

// checkStatements checks that the list of parts and the provenance are about the image with a digest.
func checkStatements(t *testing.T, p parts, d descriptor, image, glibc string) {
	t.Helper()
	var m manifest
	p.get(d, &m)
	expect.Must(t, len(m.Layers) == 2, m)
	for i, want := range []string{`"SPDX-2.3"`, `"gitCommit":"0123abc"`} {
		var s struct {
			Subject       []struct{ Digest map[string]string }
			PredicateType string
			Predicate     json.RawMessage
		}
		p.get(m.Layers[i], &s)
		expect.Must(t, len(s.Subject) == 1 && "sha256:"+s.Subject[0].Digest["sha256"] == image, s.Subject)
		expect.True(t, s.PredicateType == []string{kindSBOM, kindProvenance}[i] && strings.Contains(string(s.Predicate), want), s.PredicateType, string(s.Predicate))
		expect.True(t, i == 0 || strings.Contains(string(s.Predicate), glibc), "the provenance lacks the C library")
	}
}
