// Package deploy_test checks what is handed out: which C library the programs ask for,
// the packages, and the script that installs them.
package deploy_test

import (
	"cmp"
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
)

// oldest is the C library with which everything must run: RHEL 7's.
var oldest = []int{2, 17}

// separate is the libraries that the C library had beside it until 2.34, whose functions
// are found in an older one only if the program names them.
var separate = map[string][]string{
	"libdl.so.2":      {"dladdr", "dlclose", "dlerror", "dlopen", "dlsym", "dlvsym"},
	"libpthread.so.0": {"pthread_create", "pthread_getattr_np", "pthread_join", "pthread_key_create", "pthread_once", "pthread_rwlock_rdlock"},
}

func version(t *testing.T, name string) (numbers []int) {
	t.Helper()
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "GLIBC_"), ".") {
		n, err := strconv.Atoi(part)
		expect.OK(t, err, "what version is", name, "?")
		numbers = append(numbers, n)
	}
	return numbers
}

func open(t *testing.T, path string) *elf.File {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("not built: %v (make all static builds it)", err)
	}
	f, err := elf.Open(path)
	expect.OK(t, err, "reading", path)
	t.Cleanup(func() { f.Close() })
	return f
}

// folder returns where a file lies that was built, for the processor that make builds for.
func folder(name, here string) string { return cmp.Or(os.Getenv(name), here) }

func TestOldestLibrary(t *testing.T) {
	files := folder("RATION_TEST_FILES", "../internal/embedded/files")
	for _, path := range []string{
		filepath.Join(folder("RATION_TEST_BIN", "../bin"), "ration"),
		filepath.Join(files, "libration.so"), filepath.Join(files, "libcuda.so.1"), filepath.Join(files, "libnvidia-ml.so.1"),
		filepath.Join(files, "fake-smi"), filepath.Join(files, "fake-train"), filepath.Join(files, "probe"), filepath.Join(files, "workload"), filepath.Join(files, "benchworker"),
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := open(t, path)
			needs, err := f.DynamicVersionNeeds()
			expect.Must(t, err == nil && len(needs) != 0, "it needs", needs, err)
			for _, library := range needs {
				for _, need := range library.Needs {
					expect.True(t, slices.Compare(version(t, need.Dep), oldest) <= 0, "it needs", need.Dep, "of", library.Name)
				}
			}
			symbols, err := f.DynamicSymbols()
			expect.OK(t, err)
			libraries, err := f.ImportedLibraries()
			expect.OK(t, err)
			for _, symbol := range symbols {
				for library, names := range separate {
					expect.True(t, symbol.Section != elf.SHN_UNDEF || elf.ST_BIND(symbol.Info) != elf.STB_GLOBAL || !slices.Contains(names, symbol.Name) || slices.Contains(libraries, library),
						"it needs", symbol.Name, "and does not name", library)
				}
			}
		})
	}
}

// TestStatic checks that the program for systems without glibc asks for no library.
func TestStatic(t *testing.T) {
	f := open(t, filepath.Join(folder("RATION_TEST_BIN", "../bin"), "ration-static"))
	for _, p := range f.Progs {
		expect.True(t, p.Type != elf.PT_INTERP && p.Type != elf.PT_DYNAMIC, "it has a segment of type", p.Type)
	}
}
