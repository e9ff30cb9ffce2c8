package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"ration/internal/safepath"

	"golang.org/x/sys/unix"
)

// Starting NVML takes about 50 ms, but the devices of a machine rarely change: only after a boot,
// when the driver is replaced, or when a device is added, removed or divided. So a command that
// needs only the list of devices keeps it in a file.

// known is the content of that file.
type known struct {
	Machine string   `json:"machine"` // see machineState
	Version string   `json:"version"`
	CUDA    int      `json:"cuda"`
	Devices []Device `json:"devices"`
}

// maxKnown bounds the size of the file.
const maxKnown = 64 << 10

// Known returns the devices from file, which Remember wrote, if they are still valid. Otherwise it
// calls Open. A Driver from the file has only Devices, and answers no other query.
func Known(file string) (*Driver, error) {
	if d, ok := knownDriver("/", file); ok {
		return d, nil
	}
	return Open("")
}

// knownDriver returns the content of a file, if it describes the machine with the given root.
func knownDriver(root, file string) (*Driver, bool) {
	k, ok := readKnown(file)
	if !ok || k.Machine == "" || k.Machine != machineState(root) {
		return nil, false
	}
	return &Driver{Version: k.Version, CUDA: k.CUDA, Devices: k.Devices}, true
}

// Remember writes the devices to a file for Known. It ignores errors: then the next command starts
// NVML.
func (d *Driver) Remember(file string) {
	if !d.isKnown() {
		d.remember("/", file)
	}
}

func (d *Driver) remember(root, file string) {
	k := known{machineState(root), d.Version, d.CUDA, d.Devices}
	if k.Machine == "" || len(d.Devices) == 0 || slices.ContainsFunc(d.Devices, func(dev Device) bool { return dev.Failed != nil }) {
		return
	}
	text, err := json.Marshal(k)
	if err != nil {
		return
	}
	_ = safepath.Replace(file, text, 0o600)
}

// readKnown reads a file, if only this user can have written it.
func readKnown(file string) (k known, ok bool) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return k, false
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return k, false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKnown))
	return k, err == nil && json.Unmarshal(text, &k) == nil
}

// machineState returns a hash of what the kernel reports about this boot, the driver and its
// devices. It is empty if the kernel reports nothing about them, as in a container. It does not
// query the driver, which would take longer than everything else.
func machineState(root string) string {
	parts := []string{"with Reserved"} // earlier versions did not write it
	for _, file := range []string{"sys/kernel/random/boot_id", "driver/nvidia/version"} {
		text, err := os.ReadFile(filepath.Join(root, "proc", file))
		if err != nil {
			return ""
		}
		parts = append(parts, string(text))
	}
	devices, err := os.ReadDir(filepath.Join(root, "proc/driver/nvidia/gpus")) // by bus address
	if err != nil || len(devices) == 0 {
		return ""
	}
	files := []string{filepath.Join(root, "sys/module/nvidia")}
	for _, d := range devices {
		files = append(files, filepath.Join(root, "sys/bus/pci/devices", strings.ToLower(d.Name())))
	}
	for _, file := range files {
		parts = append(parts, file, madeAnew(file))
	}
	parts = append(parts, names(filepath.Join(root, "proc/driver/nvidia/capabilities"), "gpu*/mig/gi*")...)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// madeAnew returns a text that changes if a folder of the kernel is made again under the same name:
// the driver was reloaded, or a device was replaced.
func madeAnew(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// names returns the sorted paths in a folder that match a pattern.
func names(folder, pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(folder, pattern)) // cannot fail: the pattern is valid
	slices.Sort(found)
	return found
}
