package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Tree returns the files and symbolic links below a folder, as files of an image whose root it is.
func Tree(root string) (files []File, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f := File{From: path, To: path[len(filepath.Clean(root)):]}
		if entry.Type()&fs.ModeSymlink != 0 {
			f.From = ""
			f.Link, err = os.Readlink(path)
		}
		files = append(files, f)
		return err
	})
	return files, err
}

// layer returns files, with the folders that they are in, as a tar file: as it is, and compressed.
func layer(files []File, created time.Time) (unpacked, packed []byte, err error) {
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
		return add(w, tar.Header{Name: path + "/", Mode: 0o755, Typeflag: tar.TypeDir, ModTime: created}, nil)
	}
	for _, f := range files {
		if err := folder(filepath.Dir(f.To[1:])); err != nil {
			return nil, nil, err
		}
		if err := f.add(w, created); err != nil {
			return nil, nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	var compressed bytes.Buffer
	z, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(out.Bytes())
	}
	if err == nil {
		err = z.Close()
	}
	return out.Bytes(), compressed.Bytes(), err
}

// add writes a file. Of its mode only the right to execute counts, so that the umask of the builder does not.
func (f File) add(w *tar.Writer, created time.Time) error {
	to := f.To[1:]
	if f.Link != "" {
		return add(w, tar.Header{Name: to, Linkname: f.Link, Typeflag: tar.TypeSymlink, Mode: 0o777, ModTime: created}, nil)
	}
	info, err := os.Stat(f.From)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(f.From)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return add(w, tar.Header{Name: to, Mode: mode, Size: int64(len(text)), ModTime: created}, text)
}

func add(w *tar.Writer, h tar.Header, text []byte) error {
	if err := w.WriteHeader(&h); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	_, err := w.Write(text)
	return err
}
