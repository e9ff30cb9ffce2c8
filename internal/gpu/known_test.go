package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"ration/check/expect"
)

// machineRoot makes the files by which a machine is known.
func machineRoot(t *testing.T) (root string, write func(name, text string)) {
	t.Helper()
	root = t.TempDir()
	write = func(name, text string) {
		t.Helper()
		path := filepath.Join(root, "proc", name)
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("sys/kernel/random/boot_id", "first\n")
	write("driver/nvidia/version", "580\n")
	write("driver/nvidia/gpus/0000:0A:00.0/information", "GPU UUID: GPU-1\n")
	for _, folder := range []string{"sys/module/nvidia", "sys/bus/pci/devices/0000:0a:00.0"} {
		expect.OK(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	return root, write
}

// The devices are known until something about the machine changes.
func TestKnown(t *testing.T) {
	devices := []Device{{Index: 0, UUID: "GPU-1", Name: "H200", Total: 1 << 37}, {Index: 1, UUID: "GPU-2", MIG: true}}
	again := func(root, folder string) { // the old one stays, so that its number does
		path := filepath.Join(root, folder)
		expect.OK(t, errors.Join(os.Rename(path, path+".old"), os.Mkdir(path, 0o755)))
	}
	for name, change := range map[string]func(root string, write func(name, text string)){
		"another boot":     func(_ string, write func(name, text string)) { write("sys/kernel/random/boot_id", "second\n") },
		"another driver":   func(_ string, write func(name, text string)) { write("driver/nvidia/version", "590\n") },
		"loaded again":     func(root string, _ func(name, text string)) { again(root, "sys/module/nvidia") },
		"exchanged device": func(root string, _ func(name, text string)) { again(root, "sys/bus/pci/devices/0000:0a:00.0") },
		"one more": func(_ string, write func(name, text string)) {
			write("driver/nvidia/gpus/0000:0B:00.0/information", "")
		},
		"divided": func(_ string, write func(name, text string)) {
			write("driver/nvidia/capabilities/gpu0/mig/gi1/access", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, write := machineRoot(t)
			file := filepath.Join(t.TempDir(), "devices")
			_, ok := knownDriver(root, file)
			expect.True(t, !ok, "known without a file")
			(&Driver{Version: "580.1", CUDA: 13000, Devices: devices}).remember(root, file)
			d, ok := knownDriver(root, file)
			expect.Must(t, ok && d.Version == "580.1" && d.CUDA == 13000 && reflect.DeepEqual(d.Devices, devices), "remembered", ok, d)
			d.Close()
			change(root, write)
			_, ok = knownDriver(root, file)
			expect.True(t, !ok, "still known")
		})
	}
}

// A file that somebody else could have written is not believed, nor one that is none.
func TestKnownFile(t *testing.T) {
	root, _ := machineRoot(t)
	for name, spoil := range map[string]func(file string) error{
		"writable by others": func(file string) error { return os.Chmod(file, 0o622) },
		"a link": func(file string) error {
			if err := os.Rename(file, file+"2"); err != nil {
				return err
			}
			return os.Symlink(file+"2", file)
		},
		"cut short": func(file string) error { return os.Truncate(file, 20) },
		"a folder": func(file string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Mkdir(file, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "devices")
			(&Driver{Devices: []Device{{UUID: "GPU-1"}}}).remember(root, file)
			_, ok := knownDriver(root, file)
			expect.Must(t, ok, "not remembered")
			expect.OK(t, spoil(file))
			_, ok = knownDriver(root, file)
			expect.True(t, !ok, "believed")
		})
	}
}

// Where the kernel says nothing of the driver, nothing is remembered: it would be known for ever.
func TestKnownNothing(t *testing.T) {
	root, file := t.TempDir(), filepath.Join(t.TempDir(), "devices")
	(&Driver{Devices: []Device{{UUID: "GPU-1"}}}).remember(root, file)
	_, err := os.Lstat(file)
	expect.True(t, err != nil, "remembered")
	expect.OK(t, os.MkdirAll(filepath.Join(root, "proc/sys/kernel/random"), 0o755))
	expect.OK(t, os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte("x"), 0o644))
	expect.Equal(t, machineState(root), "", "a machine without a driver is known")
}
