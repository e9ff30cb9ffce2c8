package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/embedded"
)

// NVIDIA's library finds the MIG devices of the stand-in driver, and that they work.
func TestMIGDevices(t *testing.T) {
	if err := embedded.FakeGPU.Built(); err != nil {
		t.Skip(err)
	}
	folder, err := embedded.FakeGPU.Unpack()
	expect.OK(t, err)
	root := t.TempDir()
	expect.OK(t, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	expect.OK(t, os.Symlink(folder, filepath.Join(root, "usr/lib")))
	t.Setenv("FAKEGPU", "h100migx9")
	t.Setenv("FAKEGPU_STATE", filepath.Join(root, "machine"))
	t.Setenv("FAKEGPU_QUIET", "1")
	d := Driver{Root: root}
	found, err := d.Devices()
	expect.OK(t, err)
	// The first MIG device of each of the two GPUs has its number; the others follow.
	expect.Must(t, len(found.Devices) == 9, found.Devices)
	var uuids []string
	for i, dev := range found.Devices {
		uuids = append(uuids, dev.UUID)
		second := i == 1 || i == 8
		expect.True(t, dev.Index == i && strings.HasPrefix(dev.UUID, "MIG-") && dev.Total == 9984<<20 && !dev.MIG && dev.Capability == [2]int{9, 0}, dev)
		expect.Equal(t, dev.Parent != found.Devices[0].Parent, second, "of the second GPU:", dev)
	}
	sick, _ := d.Sick(uuids)
	expect.Equal(t, len(sick), 0)
	sick, _ = d.Sick(append(uuids, "MIG-of-another-machine"))
	expect.Equal(t, len(sick), 1)
	users, err := d.Users(uuids)
	expect.True(t, err == nil && len(users) == 9, users, err)
}
