package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

func TestLoaderOf(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		expect.OK(t, os.WriteFile(path, []byte(text), 0o755))
		return path
	}
	shell := loaderOf("/bin/sh")
	for path, want := range map[string]string{
		write("script", "#!/bin/sh\n"):                      shell,
		write("script-of-script", "#! "+dir+"/script -x\n"): shell,
		write("loop", "#!"+dir+"/loop\n"):                   "",
		write("text", "hello"):                              "",
		write("empty", ""):                                  "",
		write("nameless", "#!\n"):                           "",
		filepath.Join(dir, "nothing"):                       "",
		dir:                                                 "",
	} {
		expect.Equal(t, loaderOf(path), want, path)
	}
}

// A program of musl would not start with the library preloaded: it is refused in a sentence.
func TestMuslProgram(t *testing.T) {
	testenv.HasTool(t, "musl-gcc")
	dir := t.TempDir()
	source, program, script := filepath.Join(dir, "a.c"), filepath.Join(dir, "a"), filepath.Join(dir, "script")
	expect.OK(t, errors.Join(os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600), os.WriteFile(script, []byte("#!"+program+"\n"), 0o755)))
	out, err := exec.Command("musl-gcc", "-o", program, source).CombinedOutput()
	expect.OK(t, err, out)
	for _, path := range []string{program, script} {
		err := checkLibc(path)
		expect.True(t, errors.Is(err, ErrOtherLibc) && errors.Is(err, ErrNotRunnable), path, err)
	}
	// A static program is harmless where there is glibc: what it starts is limited.
	out, err = exec.Command("musl-gcc", "-static", "-o", program, source).CombinedOutput()
	expect.OK(t, err, out)
	err = checkLibc(program)
	expect.True(t, !hasGlibc() || err == nil, err)
}
