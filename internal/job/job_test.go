package job

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/internal/limit"
)

func TestFolder(t *testing.T) {
	t.Setenv(EnvFolder, "/elsewhere")
	if got := Folder(); got != "/elsewhere" {
		t.Errorf("got %s, want what %s says", got, EnvFolder)
	}
	t.Setenv(EnvFolder, "")
	if got := Folder(); os.Geteuid() == 0 && got != "/run/ration" {
		t.Errorf("got %s for root", got)
	}
}

func TestMake(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, folder)
	for range 2 { // the second time it exists
		path, err := MakeFolder("train")
		if err != nil || path != filepath.Join(folder, "train", "region") {
			t.Fatalf("got %s, %v", path, err)
		}
	}
	for _, dir := range []string{folder, filepath.Join(folder, "train")} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: got %v, %v, want mode 0700", dir, st.Mode(), err)
		}
	}
	if _, err := MakeFolder("../train"); !errors.Is(err, limit.ErrName) {
		t.Errorf("got %v, want ErrName", err)
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, plant := range map[string]func(dir string) error{
		"a link": func(dir string) error {
			return os.Symlink(t.TempDir(), dir)
		},
		"a file": func(dir string) error {
			return os.WriteFile(dir, nil, 0o600)
		},
		"writable by others": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "jobs")
			t.Setenv(EnvFolder, folder)
			must(t, plant(folder))
			if path, err := MakeFolder("train"); !errors.Is(err, ErrFolder) {
				t.Errorf("got %s, %v, want ErrFolder", path, err)
			}
		})
	}
}

func TestList(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, folder)
	t.Setenv(EnvRegion, "")
	if jobs, err := List(); err != nil || len(jobs) != 0 {
		t.Fatalf("got %v, %v where there is no folder", jobs, err)
	}
	var paths []string
	for _, name := range []string{"a", "b"} {
		path, err := MakeFolder(name)
		must(t, err)
		paths = append(paths, path)
	}
	must(t, os.WriteFile(paths[1], nil, 0o600))
	t.Setenv(EnvRegion, paths[1])
	jobs, err := List()
	if err != nil || len(jobs) != 1 || jobs[0] != (Job{"b", paths[1]}) {
		t.Errorf("got %v, %v, want b, once", jobs, err)
	}
}

func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	path, remove, err := Scratch()
	must(t, err)
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", st, err)
	}
	remove()
	left, _, err := Scratch()
	must(t, err)
	RemoveScratch()
	for _, p := range []string{path, left} {
		if _, err := os.Stat(filepath.Dir(p)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it gone", p, err)
		}
	}
}

func TestFileSystem(t *testing.T) {
	if got := FileSystem("/proc"); got != "a file system of type 0x9fa0" {
		t.Errorf("/proc is on %q", got)
	}
	if got := fileSystems[unix.TMPFS_MAGIC]; got != "tmpfs" {
		t.Errorf("a tmpfs is called %q", got)
	}
}
