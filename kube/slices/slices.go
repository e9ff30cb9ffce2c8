// Package slices describes a machine's GPUs to Kubernetes as the devices of ResourceSlices. The
// scheduler allocates parts of their memory and time (DRAConsumableCapacity).
//
// It declares the names that claims, device classes and the kubelet plugin have in common.
package slices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Driver is the name of the DRA driver, and of its DeviceClass.
const Driver = "gpu.ration"

// The capacities of a device.
const (
	Memory  resourceapi.QualifiedName = "memory"  // bytes
	Compute resourceapi.QualifiedName = "compute" // per cent of its time, as a share
)

// The attributes of a device.
const (
	UUID              resourceapi.QualifiedName = "uuid"
	Model             resourceapi.QualifiedName = "model"
	Architecture      resourceapi.QualifiedName = "architecture"
	ComputeCapability resourceapi.QualifiedName = "computeCapability"
	DriverVersion     resourceapi.QualifiedName = "driverVersion"
	CUDAVersion       resourceapi.QualifiedName = "cudaDriverVersion"
	Index             resourceapi.QualifiedName = "index"
	NUMANode          resourceapi.QualifiedName = "numaNode"
	MIG               resourceapi.QualifiedName = "mig" // whether it is a MIG device
)

// The keys of a device's taints. A claim gets a device with a taint only if its request tolerates it.
const (
	TaintUnhealthy = Driver + "/unhealthy" // it does not work
	TaintOutside   = Driver + "/outside"   // a process of a pod uses it without the library
)

const (
	// Step is the unit that requests for memory are rounded up to. HAMi uses the same unit.
	Step = 1 << 20
	// LeastMemory is the smallest amount that a request gets. The context of a CUDA program needs
	// more than that on most GPUs. A request of "10", without a unit, must not be granted as 10
	// bytes.
	LeastMemory = 256 << 20
)

// Location is where a device is in the machine. Parts that are unknown are empty.
type Location struct {
	PCI  string // bus ID, as in 0000:3b:00.0
	Root string // of the PCIe hierarchy, as in pci0000:3a
	NUMA string // number of the memory node that it is near
}

// Fault is a fault of a GPU that the driver has reported.
type Fault struct {
	PCI   string // bus ID of the GPU, as in its Location
	Why   string
	At    time.Time
	Reset bool // the GPU needs a reset
}

// GPU is a device of the machine.
type GPU struct {
	Index         int // NVML's index
	UUID          string
	Model         string
	Capability    [2]int // major and minor compute capability; zero if unknown
	DriverVersion string
	CUDA          int    // the newest version that the driver supports, as in 13000
	Memory        uint64 // bytes that all programs together can have, with their contexts
	MIG           bool   // divided into MIG devices, of which there is none; not published
	Parent        string // UUID of its GPU, for a MIG device
	Location      Location

	Taints []resourceapi.DeviceTaint // what keeps claims away now
}

// Name returns the device name of a GPU. It is derived from the UUID, because indexes change when a
// GPU is added or fails, and a claim must not find another device under the same name.
func (g GPU) Name() string {
	if mig, ok := strings.CutPrefix(g.UUID, "MIG-"); ok {
		return "mig-" + strings.ToLower(mig)
	}
	return "gpu-" + strings.ToLower(strings.TrimPrefix(g.UUID, "GPU-"))
}

// Capacity returns how much memory of a GPU can be allocated, in whole steps.
func (g GPU) Capacity() uint64 { return g.Memory / Step * Step }

// Options are the operator's settings.
type Options struct {
	// DefaultMemory is what a request without an amount of memory gets. Zero means the whole
	// device, which is the traditional meaning of a request for a GPU.
	DefaultMemory uint64
}

// Device returns a GPU as a device of a ResourceSlice.
func (o Options) Device(g GPU) resourceapi.Device {
	multiple := true
	return resourceapi.Device{
		Name:                     g.Name(),
		AllowMultipleAllocations: &multiple,
		Attributes:               g.attributes(),
		Taints:                   g.Taints,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			Memory:  o.memory(g.Capacity()),
			Compute: compute(),
		},
	}
}

// memory returns the capacity of a device in bytes.
func (o Options) memory(total uint64) resourceapi.DeviceCapacity {
	least := min(LeastMemory, total/2/Step*Step)
	whole := total
	if o.DefaultMemory != 0 {
		whole = min(total, max(least, (o.DefaultMemory+Step-1)/Step*Step))
	}
	return capacity(total, whole, least, Step, resource.BinarySI)
}

// compute returns the capacity of a device in per cent of its time. A request without an amount has
// no share, and gets the time that others leave unused.
func compute() resourceapi.DeviceCapacity { return capacity(100, 0, 0, 1, resource.DecimalSI) }

// capacity always sets a request policy. Without one, a request that does not name the capacity
// would take all of it, and a request for any quantity would be granted, even for a single byte.
func capacity(total, unspecified, least, step uint64, format resource.Format) resourceapi.DeviceCapacity {
	quantity := func(n uint64) *resource.Quantity { return resource.NewQuantity(int64(n), format) }
	return resourceapi.DeviceCapacity{
		Value: *quantity(total),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity(unspecified),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(least), Max: quantity(total), Step: quantity(step)},
		},
	}
}

func (g GPU) attributes() map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	index := int64(g.Index)
	mig := g.Parent != ""
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{Index: {IntValue: &index}, MIG: {BoolValue: &mig}}
	text := func(name resourceapi.QualifiedName, value string) {
		if value = value[:min(len(value), resourceapi.DeviceAttributeMaxValueLength)]; value != "" {
			out[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	version := func(name resourceapi.QualifiedName, value string) {
		if value != "" {
			out[name] = resourceapi.DeviceAttribute{VersionValue: &value}
		}
	}
	text(UUID, g.UUID)
	text(Model, g.Model)
	text(Architecture, architecture(g.Capability))
	text(deviceattribute.StandardDeviceAttributePCIBusID, g.Location.PCI)
	text(deviceattribute.StandardDeviceAttributePCIeRoot, g.Location.Root)
	if node, err := strconv.ParseInt(g.Location.NUMA, 10, 64); err == nil && node >= 0 {
		out[NUMANode] = resourceapi.DeviceAttribute{IntValue: &node}
	}
	version(DriverVersion, semantic(g.DriverVersion))
	if g.CUDA > 0 {
		version(CUDAVersion, fmt.Sprintf("%d.%d.0", g.CUDA/1000, g.CUDA%1000/10))
	}
	if g.Capability[0] > 0 {
		version(ComputeCapability, fmt.Sprintf("%d.%d.0", g.Capability[0], g.Capability[1]))
	}
	return out
}

// architecture returns NVIDIA's name for the architecture of a compute capability, or "" if it is
// unknown here; claims can ask for the capability itself.
func architecture(capability [2]int) string {
	switch major, minor := capability[0], capability[1]; {
	case major == 5:
		return "Maxwell"
	case major == 6:
		return "Pascal"
	case major == 7 && minor < 5:
		return "Volta"
	case major == 7:
		return "Turing"
	case major == 8 && minor == 9:
		return "Ada Lovelace"
	case major == 8:
		return "Ampere"
	case major == 9:
		return "Hopper"
	case major == 10, major == 11, major == 12:
		return "Blackwell"
	}
	return ""
}

// semantic converts a driver's version, such as 580.82.07, to the form that Kubernetes compares:
// three numbers without leading zeros. It returns "" if that is impossible.
func semantic(version string) string {
	var numbers []string
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || len(numbers) == 3 {
			return ""
		}
		numbers = append(numbers, strconv.FormatUint(n, 10))
	}
	for len(numbers) < 3 {
		numbers = append(numbers, "0")
	}
	return strings.Join(numbers, ".")
}

// Publishable returns the GPUs that can be divided into rations, and why the others are left out.
func Publishable(gpus []GPU) (out []GPU, left []string) {
	for _, g := range gpus {
		switch {
		case g.MIG:
			left = append(left, fmt.Sprintf("GPU %d (%s) is divided (MIG), and has no MIG device", g.Index, g.UUID))
		case g.UUID == "":
			left = append(left, fmt.Sprintf("GPU %d has no UUID", g.Index))
		case g.Capacity() < 2*Step:
			left = append(left, fmt.Sprintf("GPU %d (%s) has %d bytes of memory", g.Index, g.UUID, g.Memory))
		default:
			out = append(out, g)
		}
	}
	return out, left
}

// maxInSlice is how many devices the API server takes in one slice, if they may have taints.
const maxInSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// Resources returns the resources that a node publishes: one pool with the node's name, in one
// slice, or in more if the GPUs have many MIG devices.
func (o Options) Resources(node string, gpus []GPU) resourceslice.DriverResources {
	devices := make([]resourceapi.Device, 0, len(gpus))
	for _, g := range gpus {
		devices = append(devices, o.Device(g))
	}
	var pool resourceslice.Pool
	for part := range slices.Chunk(devices, maxInSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: part})
	}
	if len(devices) == 0 {
		pool.Slices = []resourceslice.Slice{{}} // the pool stays
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}
