package launch

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrOtherLibc is returned for a command into which the library cannot be loaded, as it
// needs glibc. CUDA needs it as well, so nothing is lost by not starting it.
var ErrOtherLibc = errors.New("the library needs glibc, as CUDA does")

// checkLibc returns ErrOtherLibc if the command is of another C library, which would not
// start with the library preloaded, or if this machine has no glibc.
func checkLibc(path string) error {
	const runIt = "start it without ration run"
	switch loader := loaderOf(path); {
	case strings.HasPrefix(filepath.Base(loader), "ld-musl"):
		return fmt.Errorf("%s: %w: %w, and this program uses musl (%s)", path, ErrNotRunnable, ErrOtherLibc, runIt)
	case loader == "" && !hasGlibc():
		return fmt.Errorf("%s: %w: %w, and this machine has none (%s)", path, ErrNotRunnable, ErrOtherLibc, runIt)
	}
	return nil
}

// CheckGlibc returns ErrOtherLibc if this machine has no glibc.
func CheckGlibc() error {
	if hasGlibc() {
		return nil
	}
	return fmt.Errorf("%w, and this machine has none", ErrOtherLibc)
}

// hasGlibc reports whether programs of glibc can run here: its loader is where programs look
// for it, or the shell uses one elsewhere, as on systems that keep every package apart.
func hasGlibc() bool {
	for _, loader := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if _, err := os.Stat(loader); err == nil {
			return true
		}
	}
	return strings.HasPrefix(filepath.Base(loaderOf("/bin/sh")), "ld-linux")
}

// maxScripts is how many scripts the kernel follows from one to the next.
const maxScripts = 5

// loaderOf returns the loader that a program names, and that of its interpreter for a
// script; "" for a static program, or what cannot be read.
func loaderOf(path string) string {
	for range maxScripts {
		interpreter, is := scriptInterpreter(path)
		if !is {
			break
		}
		path = interpreter
	}
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil {
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}

// scriptInterpreter returns the program that a script names in its first line.
func scriptInterpreter(path string) (string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n') // the kernel reads no more either
	words := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if !strings.HasPrefix(string(line), "#!") || len(words) == 0 {
		return "", false
	}
	return words[0], true
}
