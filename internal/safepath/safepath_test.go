package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// read opens a file and returns its content.
func read(path string) (string, error) {
	fd, err := Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var b [64]byte
	n, err := f.Read(b[:])
	return string(b[:n]), err
}

// tree makes a folder with real/file in it.
func tree(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	expect.OK(t, err)
	expect.OK(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	expect.OK(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte("content"), 0o644))
	return dir
}

func TestOpen(t *testing.T) {
	dir := tree(t)
	expect.OK(t, os.Symlink("real", filepath.Join(dir, "relative")))
	expect.OK(t, os.Symlink(filepath.Join(dir, "relative"), filepath.Join(dir, "absolute")))
	expect.OK(t, os.Symlink("../"+filepath.Base(dir)+"/./real", filepath.Join(dir, "up")))
	expect.OK(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	expect.OK(t, os.Symlink("real/file", filepath.Join(dir, "link")))
	expect.OK(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, path := range []string{"real/file", "relative/file", "absolute/file", "up/file", "real/../real/file", "./real//file"} {
		got, err := read(filepath.Join(dir, path))
		expect.True(t, err == nil && got == "content", path, got, err)
	}
	for path, want := range map[string]error{
		"loop/file": unix.ELOOP, "link": unix.ELOOP, "none/file": unix.ENOENT, "real/file/x": unix.ENOTDIR, "real/none": unix.ENOENT,
	} {
		_, err := read(filepath.Join(dir, path))
		expect.True(t, errors.Is(err, want), path, err, want)
	}
	fd, err := Open(filepath.Join(dir, "pipe"), unix.O_RDONLY, 0) // does not wait for a writer
	expect.OK(t, err)
	expect.OK(t, unix.Close(fd))
	t.Chdir(dir)
	got, err := read("relative/file")
	expect.True(t, err == nil && got == "content", got, err)
}

// Links in what others can write are refused, wherever they lead.
func TestLinksOfOthers(t *testing.T) {
	const stranger = 12345
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name   string
		mode   os.FileMode // of the folder that the link is in
		folder int         // its owner; -1: this user
		link   int         // the link's owner; -1: this user
		want   error
	}{
		{"our own", 0o755, -1, -1, nil},
		{"others may write the folder", 0o777, -1, -1, ErrLink},
		{"its group may", 0o775, -1, -1, ErrLink},
		{"like /tmp", 0o777 | os.ModeSticky, -1, -1, nil},
		{"like /tmp, and another user's link", 0o777 | os.ModeSticky, -1, stranger, ErrLink},
		{"another user's folder", 0o755, stranger, -1, ErrLink},
	} {
		t.Run(c.name, func(t *testing.T) {
			if (c.folder >= 0 || c.link >= 0) && !root {
				t.Skip("only root can give files away")
			}
			dir := tree(t)
			folder := filepath.Join(dir, "folder")
			expect.OK(t, os.Mkdir(folder, 0o755))
			expect.OK(t, os.Symlink(filepath.Join(dir, "real"), filepath.Join(folder, "link")))
			expect.OK(t, os.Lchown(filepath.Join(folder, "link"), c.link, -1))
			expect.OK(t, os.Chmod(folder, c.mode))
			expect.OK(t, os.Chown(folder, c.folder, -1))
			_, err := read(filepath.Join(folder, "link", "file"))
			expect.True(t, errors.Is(err, c.want), err, c.want)
		})
	}
}

// A folder that is swapped for a link, again and again while it is being entered, never
// leads elsewhere.
func TestSwappedFolder(t *testing.T) {
	dir := tree(t)
	play := filepath.Join(dir, "play")
	expect.OK(t, os.MkdirAll(filepath.Join(play, "d"), 0o755))
	expect.OK(t, os.WriteFile(filepath.Join(play, "d", "file"), []byte("harmless"), 0o644))
	expect.OK(t, os.Symlink(filepath.Join(dir, "real"), filepath.Join(play, "e")))
	expect.OK(t, os.Chmod(play, 0o777))
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(play, "d"), unix.AT_FDCWD, filepath.Join(play, "e"), unix.RENAME_EXCHANGE)
			}
		}
	})
	refused, end := 0, time.Now().Add(time.Minute)
	for n := 0; n < 2000 || refused == 0 && time.Now().Before(end); n++ {
		got, err := read(filepath.Join(play, "d", "file"))
		expect.Must(t, got != "content", "after", n, "tries it was led elsewhere")
		if errors.Is(err, ErrLink) {
			refused++
		}
	}
	close(stop)
	swapper.Wait()
	expect.True(t, refused != 0, "the link was never met")
}

// A link of /proc leads where the process is, not where its text says; from there on no link is
// followed, and the path is one that others can change.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		expect.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	expect.OK(t, os.Symlink(dir, filepath.Join(dir, "link")))
	t.Chdir(dir)
	cwd := fmt.Sprintf("/proc/%d/cwd", os.Getpid())
	fd, writer, err := OpenFolderOf(cwd)
	expect.Must(t, err == nil && writer == Several, "writer", writer, err)
	_ = unix.Close(fd)
	// Moved away, it is still where the process is.
	expect.OK(t, os.Rename(dir, dir+"-moved"))
	t.Cleanup(func() { _ = os.Rename(dir+"-moved", dir) })
	for _, path := range []string{cwd + "/a", "/proc/self/cwd/a"} {
		content, err := read(path)
		expect.True(t, err == nil && content == "a", path, content, err)
	}
	_, err = OpenFolder(cwd + "/link")
	expect.True(t, errors.Is(err, ErrLink), "a link was followed", err)
}

// Below a folder there is no link that leads elsewhere, and nothing that is above it.
func TestOpenFolderBelow(t *testing.T) {
	dir := tree(t)
	expect.OK(t, os.MkdirAll(filepath.Join(dir, "real", "a", "b"), 0o755))
	expect.OK(t, os.Symlink("a", filepath.Join(dir, "real", "link")))
	root, err := OpenFolder(filepath.Join(dir, "real"))
	expect.OK(t, err)
	defer unix.Close(root)
	for path, want := range map[string]string{
		"/a/b": "real/a/b", "a/./b//": "real/a/b", "/": "real",
		"/link": "", "/link/b": "", "/..": "", "/a/../../real": "", "/file": "", "/none": "",
	} {
		fd, err := OpenFolderBelow(root, path)
		if err != nil {
			expect.Equal(t, want, "", path, err)
			continue
		}
		got, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
		expect.OK(t, err)
		expect.True(t, want != "" && got == filepath.Join(dir, want), path, "is", got)
		expect.OK(t, unix.Close(fd))
	}
}
