package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// Replace replaces a file, a link or nothing, with the mode that it is given, and leaves no other file.
func TestReplace(t *testing.T) {
	dir := tree(t)
	folder := filepath.Join(dir, "real")
	expect.OK(t, os.Symlink("file", filepath.Join(folder, "link")))
	defer unix.Umask(unix.Umask(0o077))
	for _, name := range []string{"new", "link", "file"} {
		expect.OK(t, Replace(filepath.Join(folder, name), []byte(name), 0o644))
		got, err := os.ReadFile(filepath.Join(folder, name))
		st, err2 := os.Lstat(filepath.Join(folder, name))
		expect.True(t, errors.Join(err, err2) == nil && string(got) == name && st.Mode() == 0o644, name, got, st.Mode(), err, err2)
	}
	before, err := os.ReadDir(folder)
	expect.OK(t, err)
	expect.OK(t, os.Mkdir(filepath.Join(folder, "folder"), 0o700))
	err = Replace(filepath.Join(folder, "folder"), nil, 0o644)
	expect.True(t, errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EEXIST), "over a folder", err)
	after, err := os.ReadDir(folder)
	expect.True(t, err == nil && len(after) == len(before)+1, "left behind", after, err)
	err = Replace(filepath.Join(dir, "none", "file"), nil, 0o644)
	expect.True(t, errors.Is(err, unix.ENOENT), "without a folder", err)
}

// Replace does not follow a link to a folder that another user can have made.
func TestReplaceAmongOthers(t *testing.T) {
	dir := tree(t)
	expect.OK(t, os.Chmod(dir, 0o777))
	expect.OK(t, os.Symlink("real", filepath.Join(dir, "link")))
	err := Replace(filepath.Join(dir, "link", "file"), nil, 0o644)
	expect.True(t, errors.Is(err, ErrLink), err)
}
