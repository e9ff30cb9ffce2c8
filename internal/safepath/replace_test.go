package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Replace replaces a file, a link or nothing, with the mode that it is given, and leaves no other file.
func TestReplace(t *testing.T) {
	dir := tree(t)
	folder := filepath.Join(dir, "real")
	must(t, os.Symlink("file", filepath.Join(folder, "link")))
	defer unix.Umask(unix.Umask(0o077))
	for _, name := range []string{"new", "link", "file"} {
		must(t, Replace(filepath.Join(folder, name), []byte(name), 0o644))
		got, err := os.ReadFile(filepath.Join(folder, name))
		st, err2 := os.Lstat(filepath.Join(folder, name))
		if errors.Join(err, err2) != nil || string(got) != name || st.Mode() != 0o644 {
			t.Errorf("%s: %q, %v, %v, %v", name, got, st.Mode(), err, err2)
		}
	}
	before, err := os.ReadDir(folder)
	must(t, err)
	must(t, os.Mkdir(filepath.Join(folder, "folder"), 0o700))
	if err := Replace(filepath.Join(folder, "folder"), nil, 0o644); !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EEXIST) {
		t.Errorf("over a folder: %v", err)
	}
	if after, err := os.ReadDir(folder); err != nil || len(after) != len(before)+1 {
		t.Errorf("left behind: %v, %v", after, err)
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o644); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without a folder: %v", err)
	}
}

// Replace does not follow a link to a folder that another user can have made.
func TestReplaceAmongOthers(t *testing.T) {
	dir := tree(t)
	must(t, os.Chmod(dir, 0o777))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	if err := Replace(filepath.Join(dir, "link", "file"), nil, 0o644); !errors.Is(err, ErrLink) {
		t.Errorf("%v", err)
	}
}
