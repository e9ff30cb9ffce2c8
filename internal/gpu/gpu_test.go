package gpu

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/limit"
)

// fakeNVML returns the path of the stand-in driver, and skips if it was not built.
func fakeNVML(t *testing.T) string {
	build := cmp.Or(os.Getenv("RATION_TEST_BUILD"), "../../build") // make arm64 has another
	path, err := filepath.Abs(filepath.Join(build, "fakegpu/libnvidia-ml.so.1"))
	expect.OK(t, err)
	_, err = os.Stat(path)
	testenv.Made(t, err)
	return path
}

func TestOpen(t *testing.T) {
	path := fakeNVML(t)
	t.Setenv("FAKEGPU", "h100x2:8g")
	t.Setenv("FAKEGPU_STATE", filepath.Join(t.TempDir(), "gpu"))
	d, err := Open(path)
	expect.OK(t, err)
	defer d.Close()
	totals := d.Totals()
	expect.True(t, len(totals) == 2 && totals[1] == 8*limit.GiB, totals, "want two devices of 8 GiB")
	expect.True(t, d.Version != "" && d.CUDA != 0 && d.Devices[0].Name != "" && d.Devices[0].Capability == [2]int{9, 0},
		d, "want versions and names")
	words, ok := d.Devices[1].UUIDWords()
	if other, _ := d.Devices[0].UUIDWords(); !ok || words == other || words[1] == 0 {
		t.Errorf("got %x and %x of %s", words, other, d.Devices[1].UUID)
	}
	list, err := d.Processes()
	expect.True(t, err == nil && len(list) == 0, list, err, "want no processes")
}

func TestNoDriver(t *testing.T) {
	d, err := Open(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	expect.True(t, errors.Is(err, ErrNoDriver), d, err, "want ErrNoDriver")
}

func TestUUIDWords(t *testing.T) {
	words, ok := Device{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff"}.UUIDWords()
	if want := [2]uint64{0x0011223344556677, 0x8899aabbccddeeff}; !ok || words != want {
		t.Errorf("got %x, want %x", words, want)
	}
	for _, uuid := range []string{"", "GPU", "GPU-0011", "GPU-zz112233-4455-6677-8899-aabbccddeeff"} {
		if words, ok := (Device{UUID: uuid}).UUIDWords(); ok {
			t.Errorf("%q: got %x", uuid, words)
		}
	}
}

// What the driver reserves is no program's.
func TestUsable(t *testing.T) {
	path := fakeNVML(t)
	t.Setenv("FAKEGPU", "h200")
	t.Setenv("FAKEGPU_STATE", filepath.Join(t.TempDir(), "gpu"))
	d, err := Open(path)
	expect.OK(t, err)
	defer d.Close()
	free, err := d.Free(0)
	usable := d.Devices[0].Usable()
	expect.True(t, err == nil && usable == limit.Size(free) && usable < d.Devices[0].Total, "an unused device of", d.Devices[0].Total, "has", limit.Size(free), "free", err, "and", usable, "is usable")
	expect.Equal(t, (Device{Total: 1, Reserved: 2}).Usable(), 0, "of a driver that reserves more than there is", "is usable")
}
