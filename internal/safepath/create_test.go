package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
)

// write creates a file and writes a word into it.
func write(path string) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString("word")
	return err
}

// What is this user's own is written as by os.Create.
func TestCreate(t *testing.T) {
	dir := tree(t)
	expect.OK(t, os.Symlink("real/file", filepath.Join(dir, "link")))
	expect.OK(t, os.Symlink(filepath.Join(dir, "real", "made"), filepath.Join(dir, "dangling")))
	expect.OK(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	for _, path := range []string{"real/new", "real/file", "link", "dangling"} {
		err := write(filepath.Join(dir, path))
		got, err2 := os.ReadFile(filepath.Join(dir, path))
		expect.True(t, err == nil && err2 == nil && string(got) == "word", path, got, err, err2)
	}
	for path, want := range map[string]error{"real": unix.EISDIR, "none/file": unix.ENOENT, "loop": unix.ELOOP, "real/file/x": unix.ENOTDIR} {
		err := write(filepath.Join(dir, path))
		expect.True(t, errors.Is(err, want), path, err)
	}
	expect.Equal(t, write(os.DevNull), nil)
	r, w, err := os.Pipe()
	expect.OK(t, err)
	expect.OK(t, os.Symlink("/proc/self/fd/"+strconv.Itoa(int(w.Fd())), filepath.Join(dir, "own")))
	expect.OK(t, write(filepath.Join(dir, "own")))
	expect.OK(t, w.Close())
	var b [8]byte
	n, err := r.Read(b[:])
	expect.Equal(t, string(b[:n]), "word", "by a descriptor", b[:n], err)
}

// What another user can have put there is neither followed, emptied, waited for nor opened.
func TestCreateAmongOthers(t *testing.T) {
	testenv.NeedsRoot(t, "only root can give files to another user")
	const other = 65534
	dir := tree(t)
	victim := filepath.Join(dir, "real", "file")
	theirs, sticky := filepath.Join(dir, "theirs"), filepath.Join(dir, "sticky")
	expect.OK(t, os.Mkdir(theirs, 0o755))
	expect.OK(t, os.Chown(theirs, other, other))
	expect.OK(t, os.Mkdir(sticky, 0o755))
	expect.OK(t, os.Chmod(sticky, 0o777|os.ModeSticky))
	for _, in := range []string{theirs, sticky} {
		expect.OK(t, os.Symlink(victim, filepath.Join(in, "link")))
		expect.OK(t, os.Lchown(filepath.Join(in, "link"), other, other))
		expect.OK(t, os.Link(victim, filepath.Join(in, "second name")))
		expect.OK(t, unix.Mkfifo(filepath.Join(in, "pipe"), 0o666))
		expect.OK(t, os.Chown(filepath.Join(in, "pipe"), other, other))
		for name, want := range map[string]error{"link": ErrLink, "second name": ErrNotYours, "pipe": ErrNotYours} {
			err := write(filepath.Join(in, name))
			expect.True(t, errors.Is(err, want), filepath.Join(in, name), err)
		}
		expect.Equal(t, write(filepath.Join(in, "new")), nil)
	}
	expect.OK(t, os.WriteFile(filepath.Join(sticky, "file"), nil, 0o666))
	expect.OK(t, os.Chown(filepath.Join(sticky, "file"), other, other))
	err := write(filepath.Join(sticky, "file"))
	expect.True(t, errors.Is(err, ErrNotYours), "another user's file in a folder of all", err)
	err = write("/proc/" + strconv.Itoa(os.Getppid()) + "/fd/1")
	expect.True(t, errors.Is(err, ErrLink), "another process's descriptor", err)
	got, err := os.ReadFile(victim)
	expect.True(t, err == nil && string(got) == "content", "what they led to", got, err)
}

// A lease makes nobody wait.
func TestCreateLeased(t *testing.T) {
	dir := tree(t)
	path := filepath.Join(dir, "real", "file")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETSIG, int(unix.SIGURG)); err != nil { // which Go ignores
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if err := write(path); !errors.Is(err, unix.EAGAIN) {
		t.Error(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() == 0 {
		t.Errorf("it was emptied: %v", err)
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	expect.OK(t, err)
}
