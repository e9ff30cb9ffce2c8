package node

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/embedded"
	"ration/internal/limit"
)

// No library passes but one that holds a program.
func TestSelfTest(t *testing.T) {
	newNode(t)
	expect.OK(t, SelfTest())
	folder, err := embedded.Ration.Unpack()
	expect.OK(t, err)
	own, err := os.ReadFile(filepath.Join(folder, "libration.so"))
	expect.OK(t, err)
	foreign := append([]byte(nil), own...)
	const machineField = 18 // of an ELF header
	binary.LittleEndian.PutUint16(foreign[machineField:], uint16(elf.EM_RISCV))
	driver, err := embedded.FakeGPU.Unpack()
	expect.OK(t, err)
	idle, err := os.ReadFile(filepath.Join(driver, "libnvidia-ml.so.1"))
	expect.OK(t, err)
	for name, content := range map[string][]byte{
		"another architecture":         foreign,
		"empty":                        nil,
		"cut short":                    own[:len(own)/2],
		"a library that holds nothing": idle,
	} {
		t.Run(name, func(t *testing.T) {
			library := filepath.Join(t.TempDir(), "libration.so")
			expect.OK(t, os.WriteFile(library, content, 0o755))
			err := selfTest(library)
			expect.True(t, errors.Is(err, ErrLibrary) && strings.Contains(err.Error(), library), err)
		})
	}
	expect.True(t, errors.Is(selfTest(filepath.Join(t.TempDir(), "none")), ErrLibrary), "a library that is missing passes")
}

// A library that refuses and does not count does not pass: its refusals and use would not be seen.
func TestSelfTestCounts(t *testing.T) {
	for _, c := range []struct {
		peak    limit.Size
		refused uint64
		passes  bool
	}{
		{selfTestPeak, 1, true},
		{selfTestLimit, 1, true}, // the program's context counts
		{selfTestPeak, 0, false},
		{selfTestPeak, 2, false},
		{selfTestPeak - 1, 1, false},
		{selfTestLimit + 1, 1, false},
	} {
		expect.Equal(t, miscounted(c.peak, c.refused) == "", c.passes, c.peak, c.refused)
	}
}
