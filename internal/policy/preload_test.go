package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// Our line comes and goes, and nothing else changes.
func TestLine(t *testing.T) {
	for _, text := range []string{"", "# a comment\n", "/lib/a.so\n/lib/b.so\n", "/lib/a.so /lib/b.so", "\n\n", "/opt/x" + Library + "\n"} {
		with := withLine([]byte(text))
		expect.True(t, hasLine(with) && !hasLine([]byte(text)), text, "the line is not where it should be", with)
		again := withLine(with)
		expect.Equal(t, string(again), string(with), text, "a second line", again)
		want := text
		if text != "" && text[len(text)-1] != '\n' {
			want += "\n"
		}
		got := withoutLine(with)
		expect.Equal(t, string(got), want, text, "became", got)
		blank := blanked(with)
		expect.True(t, len(blank) == len(with) && !hasLine(blank) && string(blank[:len(text)]) == text, with, "blanked to", blank)
	}
}

// A library that programs do not run with is found out before any gets it.
func TestProbe(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "libration.so")
	expect.True(t, probe(bad) != nil, "a library that is missing was accepted")
	expect.OK(t, os.WriteFile(bad, []byte("not a library"), 0o755))
	expect.True(t, probe(bad) != nil, "a file that is no library was accepted")
}

// A file that is replaced keeps its mode.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	expect.OK(t, errors.Join(os.WriteFile(path, []byte("old"), 0o640), replace(path, []byte("new"))))
	text, err := os.ReadFile(path)
	st, err2 := os.Stat(path)
	expect.True(t, err == nil && err2 == nil && string(text) == "new" && st.Mode() == 0o640, text, st.Mode(), errors.Join(err, err2))
}

// A file that must not be replaced is made if it is missing, for all users to read. Otherwise only our line
// changes, and the file stays the same.
func TestPreloadInPlace(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "ld.so.preload")
	expect.OK(t, preloadInPlace(path, nil, true))
	text, err := os.ReadFile(path)
	made, err2 := os.Stat(path)
	expect.Must(t, err == nil && err2 == nil && string(text) == Library+"\n" && made.Mode() == 0o644, text, made, errors.Join(err, err2))

	expect.OK(t, errors.Join(os.Chmod(path, 0o640), preloadInPlace(path, text, false)))
	text, err = os.ReadFile(path)
	st, err2 := os.Stat(path)
	expect.True(t, err == nil && err2 == nil && !hasLine(text) && os.SameFile(st, made) && st.Mode() == 0o640, text, st, errors.Join(err, err2))
}

// A link that leads to no file is as good as no file: all users can read the list afterwards, with our line alone.
// It is empty when the policy has ended.
func TestPreloadDanglingLink(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	ways := map[string]func(path string, text []byte, on bool) error{
		"in place": preloadInPlace,
		"replaced": func(path string, text []byte, on bool) error {
			if on {
				return replace(path, withLine(text))
			}
			return replace(path, withoutLine(text))
		},
	}
	for name, set := range ways {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "ld.so.preload")
			expect.OK(t, errors.Join(os.Mkdir(filepath.Join(folder, "elsewhere"), 0o755), os.Symlink("elsewhere/list", path)))
			for _, on := range []bool{true, false} {
				before, _ := os.ReadFile(path)
				expect.OK(t, set(path, before, on))
				text, err := os.ReadFile(path)
				st, err2 := os.Stat(path)
				expect.Must(t, err == nil && err2 == nil && st.Mode() == 0o644 && hasLine(text) == on, text, st, errors.Join(err, err2))
				want := ""
				if on {
					want = Library
				}
				expect.True(t, strings.TrimSpace(string(text)) == want, string(text))
			}
		})
	}
}
