package policy

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Our line comes and goes, and nothing else changes.
func TestLine(t *testing.T) {
	for _, text := range []string{"", "# a comment\n", "/lib/a.so\n/lib/b.so\n", "/lib/a.so /lib/b.so", "\n\n", "/opt/x" + Library + "\n"} {
		with := withLine([]byte(text))
		if !hasLine(with) || hasLine([]byte(text)) {
			t.Errorf("%q: the line is not where it should be: %q", text, with)
		}
		if again := withLine(with); string(again) != string(with) {
			t.Errorf("%q: a second line: %q", text, again)
		}
		want := text
		if text != "" && text[len(text)-1] != '\n' {
			want += "\n"
		}
		if got := withoutLine(with); string(got) != want {
			t.Errorf("%q: became %q", text, got)
		}
		blank := blanked(with)
		if len(blank) != len(with) || hasLine(blank) || string(blank[:len(text)]) != text {
			t.Errorf("%q: blanked to %q", with, blank)
		}
	}
}

// A library that programs do not run with is found out before any gets it.
func TestProbe(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "libration.so")
	if err := probe(bad); err == nil {
		t.Error("a library that is missing was accepted")
	}
	if err := os.WriteFile(bad, []byte("not a library"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := probe(bad); err == nil {
		t.Error("a file that is no library was accepted")
	}
}

// A file that is replaced keeps its mode.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), replace(path, []byte("new"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	st, err2 := os.Stat(path)
	if err != nil || err2 != nil || string(text) != "new" || st.Mode() != 0o640 {
		t.Errorf("got %q, %v, %v", text, st.Mode(), errors.Join(err, err2))
	}
}
