// Package image makes container images out of files of this machine, so that tests need no registry.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// File is a file of an image.
type File struct {
	From, To string // a path of this machine, and the path in the image
	Link     string // instead of From: what a symbolic link is to
}

// Write writes an image, in the layout of the Open Container Initiative, as a tar file that `ctr images import`
// reads. Without a command of its own a container runs entrypoint.
func Write(path, name string, files []File, entrypoint []string) error {
	layer, err := layer(files)
	if err != nil {
		return fmt.Errorf("making image %s: %w", name, err)
	}
	config := encode(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	manifest := encode(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
		"layers": []any{descriptor("application/vnd.oci.image.layer.v1.tar", layer)},
	})
	entry := descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
	entry["annotations"] = map[string]string{"io.containerd.image.name": name}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		text []byte
	}{
		{"oci-layout", encode(map[string]string{"imageLayoutVersion": "1.0.0"})},
		{"index.json", encode(map[string]any{"schemaVersion": 2, "manifests": []any{entry}})},
		{blob(layer), layer}, {blob(config), config}, {blob(manifest), manifest},
	} {
		if err := add(w, tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text))}, f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// layer returns the files as a tar file, with the folders that they are in.
func layer(files []File) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	folders := []string{"."}
	var folder func(path string) error
	folder = func(path string) error {
		if slices.Contains(folders, path) {
			return nil
		}
		if err := folder(filepath.Dir(path)); err != nil {
			return err
		}
		folders = append(folders, path)
		return add(w, tar.Header{Name: path + "/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	}
	for _, f := range files {
		to := f.To[1:]
		if err := folder(filepath.Dir(to)); err != nil {
			return nil, err
		}
		if f.Link != "" {
			if err := add(w, tar.Header{Name: to, Linkname: f.Link, Typeflag: tar.TypeSymlink, Mode: 0o777}, nil); err != nil {
				return nil, err
			}
			continue
		}
		text, err := os.ReadFile(f.From)
		if err != nil {
			return nil, err
		}
		if err := add(w, tar.Header{Name: to, Mode: 0o755, Size: int64(len(text))}, text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func add(w *tar.Writer, h tar.Header, text []byte) error {
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(text))
	return err
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // only what is above is encoded
	}
	return text
}

func digest(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }

func blob(text []byte) string { return fmt.Sprintf("blobs/sha256/%x", sha256.Sum256(text)) }

func descriptor(kind string, text []byte) map[string]any {
	return map[string]any{"mediaType": kind, "digest": digest(text), "size": len(text)}
}
