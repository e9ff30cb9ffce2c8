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

// ErrOtherLibc is returned for a command that cannot load the library, because the library needs
// glibc. CUDA needs glibc too, so such a command could not use a GPU anyway.
var ErrOtherLibc = errors.New("the library needs glibc, as CUDA does")

// checkLibc returns ErrOtherLibc if the command uses another C library, because it would not start
// with the library preloaded, or if this machine has no glibc.
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

// hasGlibc reports whether programs that are linked with glibc can run here: glibc's loader is at
// the standard path, or the shell uses a loader at another path, as on systems that keep every
// package in a folder of its own.
func hasGlibc() bool {
	for _, loader := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if _, err := os.Stat(loader); err == nil {
			return true
		}
	}
	return strings.HasPrefix(filepath.Base(loaderOf("/bin/sh")), "ld-linux")
}

// maxScripts is how many scripts the kernel follows if one names another as its interpreter.
const maxScripts = 5

// loaderOf returns the loader of a program, or of a script's interpreter. It returns "" for a
// static program or an unreadable file.
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

// scriptInterpreter returns the interpreter in the first line of a script.
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
