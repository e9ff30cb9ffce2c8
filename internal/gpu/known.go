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

// Starting NVML takes some 50 ms, and the devices of a machine are the same until it is
// started again, its driver is replaced, or a device is added, removed or divided. So a
// command that needs no more than the list of devices keeps it in a file.

// known is what that file holds.
type known struct {
	Machine string   `json:"machine"` // see machineState
	Version string   `json:"version"`
	CUDA    int      `json:"cuda"`
	Devices []Device `json:"devices"`
}

// maxKnown is the largest file that is read.
const maxKnown = 64 << 10

// Known is Open where file, which Remember wrote, does not hold the devices as they are at
// this moment. A Driver from the file has Devices, and answers nothing else.
func Known(file string) (*Driver, error) {
	if d, ok := knownDriver("/", file); ok {
		return d, nil
	}
	return Open("")
}

// knownDriver returns what a file holds, if that is the machine whose root is given.
func knownDriver(root, file string) (*Driver, bool) {
	k, ok := readKnown(file)
	if !ok || k.Machine == "" || k.Machine != machineState(root) {
		return nil, false
	}
	return &Driver{Version: k.Version, CUDA: k.CUDA, Devices: k.Devices}, true
}

// Remember writes the devices to a file for Known. It is no error if it cannot: then the
// next command starts NVML.
func (d *Driver) Remember(file string) {
	if !d.isKnown() {
		d.remember("/", file)
	}
}

func (d *Driver) remember(root, file string) {
	k := known{machineState(root), d.Version, d.CUDA, d.Devices}
	if k.Machine == "" || len(d.Devices) == 0 {
		return
	}
	text, err := json.Marshal(k)
	if err != nil {
		return
	}
	_ = safepath.Replace(file, text, 0o600)
}

// readKnown reads a file that only this user can have written.
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

// machineState sums up what the kernel says of this boot, the driver and its devices; empty
// where it says nothing of them, as in a container. The driver is asked nothing: that takes
// longer than all the rest.
func machineState(root string) string {
	var parts []string
	for _, file := range []string{"sys/kernel/random/boot_id", "driver/nvidia/version"} {
		text, err := os.ReadFile(filepath.Join(root, "proc", file))
		if err != nil {
			return ""
		}
		parts = append(parts, string(text))
	}
	devices, err := os.ReadDir(filepath.Join(root, "proc/driver/nvidia/gpus")) // by their bus
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

// madeAnew tells a folder of the kernel's from a later one of the same name: the driver was
// loaded again, or a device exchanged.
func madeAnew(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// names returns the paths in a folder that a pattern matches, in order.
func names(folder, pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(folder, pattern)) // the pattern is good
	slices.Sort(found)
	return found
}
