package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
)

func bundle() Bundle {
	return Bundle{Name: "b", files: []string{"x.so", "y"}, from: fstest.MapFS{
		"files/x.so": {Data: []byte("a library")}, "files/y": {Data: []byte("a program")},
	}}
}

func unpack(t *testing.T, b Bundle) string {
	t.Helper()
	dir, err := b.Unpack()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x.so": "a library", "y": "a program"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Fatalf("%s holds %q, %v", name, got, err)
		}
	}
	return dir
}

func TestUnpackTogether(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "r", "lib")
	t.Setenv(EnvFolder, folder)
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() { unpack(t, bundle()) })
	}
	group.Wait()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("got %v, %v, want one folder", left, err)
	}
}

func TestUnpackSkipsUnusableCopies(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"cut short": func(path string) error { return os.Truncate(path, 3) },
		"changed":   func(path string) error { return os.WriteFile(path, []byte("a LIBRARY"), 0o755) },
		"gone":      os.Remove,
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+"~"), os.Symlink(path+"~", path))
		},
		"writable by others": func(path string) error { return os.Chmod(path, 0o777) },
		"not executable":     func(path string) error { return os.Chmod(path, 0o644) },
		"in a folder writable by others": func(path string) error {
			return os.Chmod(filepath.Dir(path), 0o777)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "r", "lib"))
			first := unpack(t, bundle())
			if again := unpack(t, bundle()); again != first {
				t.Errorf("unpacked again, to %s", again)
			}
			if err := spoil(filepath.Join(first, "x.so")); err != nil {
				t.Fatal(err)
			}
			second := unpack(t, bundle())
			if second == first {
				t.Error("used the unusable copy")
			}
			if third := unpack(t, bundle()); third != second {
				t.Errorf("unpacked again, to %s", third)
			}
		})
	}
}

func TestUnpackRefuses(t *testing.T) {
	for name, plant := range map[string]func(dir string) error{
		"a link":             func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"a file":             func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"writable by others": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "lib")
			t.Setenv(EnvFolder, folder)
			if err := plant(folder); err != nil {
				t.Fatal(err)
			}
			if dir, err := bundle().Unpack(); !errors.Is(err, ErrFolder) {
				t.Errorf("got %s, %v, want ErrFolder", dir, err)
			}
		})
	}
}

func TestNotBuilt(t *testing.T) {
	b := bundle()
	b.files = append(b.files, "z")
	if _, err := b.Unpack(); !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "run make") {
		t.Errorf("got %v, want ErrNotBuilt", err)
	}
}

func TestFolders(t *testing.T) {
	t.Setenv(EnvFolder, "")
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	dir := unpack(t, bundle())
	if want := filepath.Join(os.Getenv(job.EnvFolder), FolderName); filepath.Dir(dir) != want {
		t.Errorf("unpacked to %s, want it in %s", dir, want)
	}
}

// TestNoExec mounts a file system noexec.
func TestNoExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount one")
	}
	at := t.TempDir()
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its mounts with it
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Skipf("making a mount namespace: %v", err)
	}
	if err := unix.Mount("ration-test", at, "tmpfs", unix.MS_NOEXEC, "size=1m"); err != nil {
		t.Skipf("mounting one: %v", err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	t.Setenv(EnvFolder, filepath.Join(at, "r", "lib"))
	if dir, err := bundle().Unpack(); !errors.Is(err, ErrNoExec) {
		t.Errorf("got %s, %v, want ErrNoExec", dir, err)
	}
}

// What a killed process left unfinished is removed by the next that unpacks, once it is old
// enough to be no other's work.
func TestUnfinishedIsRemoved(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "r", "lib")
	t.Setenv(EnvFolder, folder)
	old, young := filepath.Join(folder, unfinished+"old"), filepath.Join(folder, unfinished+"young")
	if err := errors.Join(os.MkdirAll(old, 0o755), os.WriteFile(filepath.Join(old, "x.so"), nil, 0o755), os.Mkdir(young, 0o755)); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, then, then); err != nil {
		t.Fatal(err)
	}
	unpack(t, bundle())
	if _, err := os.Lstat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old one: %v", err)
	}
	if _, err := os.Lstat(young); err != nil {
		t.Errorf("the young one: %v", err)
	}
}
