package job

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/limit"
)

func TestFolder(t *testing.T) {
	t.Setenv(EnvFolder, "/elsewhere")
	expect.Equal(t, Folder(), "/elsewhere", "want what", EnvFolder, "says")
	t.Setenv(EnvFolder, "")
	got := Folder()
	expect.True(t, os.Geteuid() != 0 || got == "/run/ration", got, "for root")
}

func TestMake(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, folder)
	for range 2 { // the second time it exists
		path, err := MakeFolder("train")
		expect.Must(t, err == nil && path == filepath.Join(folder, "train", "region"), path, err)
	}
	for _, dir := range []string{folder, filepath.Join(folder, "train")} {
		st, err := os.Stat(dir)
		expect.True(t, err == nil && st.Mode().Perm() == 0o700, dir, st.Mode(), err, "want mode 0700")
	}
	_, err := MakeFolder("../train")
	expect.True(t, errors.Is(err, limit.ErrName), err, "want ErrName")
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
			expect.OK(t, plant(folder))
			path, err := MakeFolder("train")
			expect.True(t, errors.Is(err, ErrFolder), path, err, "want ErrFolder")
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
		expect.OK(t, err)
		paths = append(paths, path)
	}
	expect.OK(t, os.WriteFile(paths[1], nil, 0o600))
	t.Setenv(EnvRegion, paths[1])
	jobs, err := List()
	expect.True(t, err == nil && len(jobs) == 1 && jobs[0] == (Job{"b", paths[1]}), jobs, err, "want b, once")
}

func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	path, remove, err := Scratch()
	expect.OK(t, err)
	st, err := os.Stat(filepath.Dir(path))
	expect.True(t, err == nil && st.Mode().Perm() == 0o700, st, err)
	remove()
	left, _, err := Scratch()
	expect.OK(t, err)
	RemoveScratch()
	for _, p := range []string{path, left} {
		_, err := os.Stat(filepath.Dir(p))
		expect.True(t, errors.Is(err, fs.ErrNotExist), p, err, "want it gone")
	}
}

func TestFileSystem(t *testing.T) {
	expect.Equal(t, FileSystem("/proc"), "a file system of type 0x9fa0", "/proc is on")
	expect.Equal(t, fileSystems[unix.TMPFS_MAGIC], "tmpfs", "a tmpfs is called")
}
