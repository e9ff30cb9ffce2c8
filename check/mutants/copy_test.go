package main

import (
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
)

// What is built is copied, with paths of the copy in the files for make. A folder may have a name like theirs, and what
// other targets leave is not copied.
func TestTakeBuild(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"probe/probe.d", "probe/sysusers.d/ration.conf", "stage/usr/ration", "test-systemd/debian/init"} {
		path := filepath.Join(root, "build", name)
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.OK(t, os.WriteFile(path, []byte("probe: "+root+"/probe.c\n"), 0o644))
	}
	expect.OK(t, takeBuild(root, dir))
	text, err := os.ReadFile(filepath.Join(dir, "build/probe/probe.d"))
	expect.OK(t, err)
	expect.Equal(t, string(text), "probe: "+dir+"/probe.c\n")
	_, err = os.Stat(filepath.Join(dir, "build/probe/sysusers.d/ration.conf"))
	expect.OK(t, err)
	names, err := os.ReadDir(filepath.Join(dir, "build"))
	expect.OK(t, err)
	expect.Equal(t, len(names), 1)
}
