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

	"ration/check/expect"
	"ration/check/testenv"
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
	expect.OK(t, err)
	for name, want := range map[string]string{"x.so": "a library", "y": "a program"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		expect.Must(t, err == nil && string(got) == want, name, "holds", got, err)
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
	left, err := os.ReadDir(folder)
	expect.True(t, err == nil && len(left) == 1, left, err, "want one folder")
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
			expect.Equal(t, unpack(t, bundle()), first, "unpacked again, to")
			expect.OK(t, spoil(filepath.Join(first, "x.so")))
			second := unpack(t, bundle())
			expect.True(t, second != first, "used the unusable copy")
			expect.Equal(t, unpack(t, bundle()), second, "unpacked again, to")
		})
	}
}

// A file that was compared once is compared again when it has changed.
func TestComparedAgain(t *testing.T) {
	defer func(before time.Duration) { settledAfter = before }(settledAfter)
	settledAfter = -time.Hour // also a file that changed just now
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "r", "lib"))
	first := unpack(t, bundle())
	expect.Equal(t, unpack(t, bundle()), first, "unpacked again, to")
	path := filepath.Join(first, "x.so")
	now := func() fileState {
		var st unix.Stat_t
		expect.OK(t, unix.Stat(path, &st))
		return stateOf(&st)
	}
	for before := now(); now() == before; { // until the kernel's clock has advanced
		expect.OK(t, os.WriteFile(path, []byte("a LIBRARY"), 0o755))
	}
	expect.True(t, unpack(t, bundle()) != first, "used the unusable copy")
}

// A file that changed within the last second may have changed since it was compared.
func TestComparedWhenSettled(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "r", "lib"))
	first := unpack(t, bundle())
	unpack(t, bundle())
	compared.Range(func(key, _ any) bool {
		expect.True(t, !strings.HasPrefix(key.(comparison).path, first), key)
		return true
	})
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
			expect.OK(t, plant(folder))
			dir, err := bundle().Unpack()
			expect.True(t, errors.Is(err, ErrFolder), dir, err, "want ErrFolder")
		})
	}
}

func TestNotBuilt(t *testing.T) {
	b := bundle()
	b.files = append(b.files, "z")
	_, err := b.Unpack()
	expect.True(t, errors.Is(err, ErrNotBuilt) && strings.Contains(err.Error(), "run make"), err, "want ErrNotBuilt")
}

func TestFolders(t *testing.T) {
	t.Setenv(EnvFolder, "")
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	dir := unpack(t, bundle())
	want := filepath.Join(os.Getenv(job.EnvFolder), FolderName)
	expect.Equal(t, filepath.Dir(dir), want, "unpacked to", dir, "want it in")
}

// TestNoExec mounts a file system noexec.
func TestNoExec(t *testing.T) {
	testenv.NeedsRoot(t, "only root can mount one")
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
	dir, err := bundle().Unpack()
	expect.True(t, errors.Is(err, ErrNoExec), dir, err, "want ErrNoExec")
}

// What a killed process left unfinished is removed by the next that unpacks, once it is old
// enough to be no other's work.
func TestUnfinishedIsRemoved(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "r", "lib")
	t.Setenv(EnvFolder, folder)
	old, young := filepath.Join(folder, unfinished+"old"), filepath.Join(folder, unfinished+"young")
	expect.OK(t, errors.Join(os.MkdirAll(old, 0o755), os.WriteFile(filepath.Join(old, "x.so"), nil, 0o755), os.Mkdir(young, 0o755)))
	then := time.Now().Add(-2 * time.Hour)
	expect.OK(t, os.Chtimes(old, then, then))
	unpack(t, bundle())
	_, err := os.Lstat(old)
	expect.True(t, errors.Is(err, fs.ErrNotExist), "the old one", err)
	_, err = os.Lstat(young)
	expect.Equal(t, err, nil, "the young one")
}

// Files are compared in pieces: a difference is found in each of them, and at the end.
func TestEqualInPieces(t *testing.T) {
	for _, size := range []int{0, 1, 32 << 10, 32<<10 + 1, 64 << 10, 100_000} {
		whole := strings.Repeat("x", size)
		expect.True(t, areEqual(strings.NewReader(whole), strings.NewReader(whole)), size, "bytes differ from themselves")
		expect.True(t, !areEqual(strings.NewReader(whole), strings.NewReader(whole+"x")), size, "bytes equal one more")
		expect.True(t, !areEqual(strings.NewReader(whole+"x"), strings.NewReader(whole)), size, "bytes equal one less")
		expect.True(t, !areEqual(strings.NewReader(whole+"x"), strings.NewReader(whole+"y")), size, "bytes equal others")
	}
}
