// Package nvidia finds the files that a container needs to use NVIDIA GPUs: device nodes, the
// driver's libraries and NVIDIA's hooks. It uses NVIDIA's own library for CDI.
package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Driver is the location of the machine's driver.
type Driver struct {
	Root     string // root of the file system with the driver, as seen by this process
	HostRoot string // the same root, as seen by the container engine
	Hook     string // nvidia-cdi-hook, as seen by the container engine
}

// ErrLibrary is returned if a driver root has no NVML.
var ErrLibrary = errors.New("no libnvidia-ml.so.1")

// libraryFolders are the library folders of distributions and of NVIDIA's driver container.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib"}

// NVML returns the path of the driver's NVML.
func (d Driver) NVML() (string, error) {
	for _, folder := range libraryFolders {
		path := filepath.Join(d.Root, folder, "libnvidia-ml.so.1")
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real, nil
		}
	}
	return "", fmt.Errorf("looking in %s: %w (install the driver on the node, or say where it is with --driver-root)", d.Root, ErrLibrary)
}

// starting is held while NVML is started, used and shut down. NVIDIA's package has one global set
// of functions, whatever the library, and starting and shutting down change it.
var starting sync.Mutex

// Edits returns the edits that let a container use the GPUs with these UUIDs.
func (d Driver) Edits(uuids []string) (specs.ContainerEdits, error) {
	library, err := d.NVML()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	starting.Lock()
	defer starting.Unlock()
	return d.edits(nvml.New(nvml.WithLibraryPath(library)), uuids)
}

func (d Driver) edits(library nvml.Interface, uuids []string) (out specs.ContainerEdits, err error) {
	lib, err := nvcdi.New(nvcdi.WithDriverRoot(d.Root), nvcdi.WithDevRoot(d.Root), nvcdi.WithNVIDIACDIHookPath(d.Hook), nvcdi.WithNvmlLib(library), nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithLogger(quiet{}))
	if err != nil {
		return out, fmt.Errorf("starting NVIDIA's library for CDI: %w", err)
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return out, fmt.Errorf("looking for the driver's files: %w (is --driver-root right?)", err)
	}
	devices, err := lib.GetDeviceSpecsByID(uuids...)
	if err != nil {
		return out, fmt.Errorf("looking for the device nodes of %v: %w", uuids, err)
	}
	if len(devices) != len(uuids) {
		return out, fmt.Errorf("looking for the device nodes of %v: there are %d", uuids, len(devices))
	}
	// Merge the driver's files and those of all devices into one set of edits.
	for i, device := range devices {
		if err := checkCaps(uuids[i], device.ContainerEdits); err != nil {
			return out, err
		}
		common.ContainerEdits = merge(common.ContainerEdits, device.ContainerEdits)
	}
	spec := &specs.Spec{ContainerEdits: *common.ContainerEdits}
	if err := d.transform(spec); err != nil {
		return out, err
	}
	return spec.ContainerEdits, nil
}

// checkCaps returns an error if a MIG device lacks one of the two nodes that give access to it, of its GPU instance and its
// compute instance. NVIDIA's library leaves out nodes that do not exist, and programs would find no device.
func checkCaps(uuid string, edits specs.ContainerEdits) error {
	if !strings.HasPrefix(uuid, "MIG-") {
		return nil
	}
	var found []string
	for _, n := range edits.DeviceNodes {
		if strings.Contains(n.Path, "/dev/nvidia-caps/") {
			found = append(found, n.Path)
		}
	}
	if len(found) != 2 {
		return fmt.Errorf("looking for the device nodes of %s: of the two in /dev/nvidia-caps there are %v (nvidia-modprobe makes them, on the node)", uuid, found)
	}
	return nil
}

// transform changes paths of this process into paths of the container engine.
func (d Driver) transform(spec *specs.Spec) error {
	if d.Root == d.HostRoot {
		return nil
	}
	err := root.NewDriverTransformer(root.WithDriverRoot(d.Root), root.WithTargetDriverRoot(d.HostRoot), root.WithDevRoot(d.Root), root.WithTargetDevRoot("/")).Transform(spec)
	if err != nil {
		return fmt.Errorf("finding the driver's files as the container engine sees them: %w", err)
	}
	return nil
}

func merge(all *specs.ContainerEdits, more specs.ContainerEdits) *specs.ContainerEdits {
	out := *all
	out.Env = append(out.Env, more.Env...)
	out.DeviceNodes = append(out.DeviceNodes, more.DeviceNodes...)
	out.Mounts = append(out.Mounts, more.Mounts...)
	out.Hooks = append(out.Hooks, more.Hooks...)
	return &out
}

// Check returns an error if a container could not be started with the edits.
func (d Driver) Check() error {
	if _, err := d.NVML(); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(d.Root, "dev")); err != nil {
		return fmt.Errorf("looking for device nodes: %w (--driver-root needs the machine's /dev)", err)
	}
	return nil
}

// quiet drops the library's messages about files that a machine does not have; for example, most
// have no display.
type quiet struct{}

func (quiet) Debugf(string, ...any)   {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Tracef(string, ...any)   {}
