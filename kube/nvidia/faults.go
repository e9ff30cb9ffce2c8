package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

// The driver writes its faults into the kernel's log:
//
//	NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
//
// NVML reports them too, but only to a process that keeps it open, and the driver cannot be replaced
// meanwhile. A record of the kernel itself has a number below 8 (facility 0), which no process can
// write. The names of programs come later in the line.

const kernelLog = "/dev/kmsg"

// xidLine matches a record of the kernel's log: its header, and the driver's line.
var xidLine = regexp.MustCompile(`^[0-7],[0-9]+,[0-9]+,[^;]*;NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.[0-9])?\): ([0-9]+),`)

// applicationXids are faults that a program causes, and that end no more than the program. They say
// nothing about the GPU.
var applicationXids = []int{13, 31, 43, 45, 68, 109}

// parseXid returns the PCI address of the GPU that a record of the kernel's log is about, and the
// fault's number. It returns false for a record about anything else, and for a fault of a program.
func parseXid(record string) (address string, xid int, ok bool) {
	m := xidLine.FindStringSubmatch(record)
	if m == nil {
		return "", 0, false
	}
	var pci [3]uint64
	for i := range pci {
		n, err := strconv.ParseUint(m[1+i], 16, 32)
		if err != nil {
			return "", 0, false
		}
		pci[i] = n
	}
	xid, err := strconv.Atoi(m[4])
	if err != nil || slices.Contains(applicationXids, xid) {
		return "", 0, false
	}
	return pciAddress(pci[0], pci[1], pci[2]), xid, true
}

func pciAddress(domain, bus, device uint64) string {
	return fmt.Sprintf("%04x:%02x:%02x", domain, bus, device)
}

// Faults calls found for each fault of a GPU that the driver reports from now on, until the context
// ends.
func (d Driver) Faults(ctx context.Context, found func(uuid, why string)) error {
	addresses, err := d.addresses()
	if err != nil {
		return err
	}
	log, err := os.Open(kernelLog)
	if err != nil {
		return fmt.Errorf("following the kernel's log: %w (is the plugin's container privileged?)", err)
	}
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	if _, err := log.Seek(0, unix.SEEK_END); err != nil {
		return fmt.Errorf("following the kernel's log: %w", err)
	}
	return faults(log, addresses, found)
}

// faults reads records of the kernel's log, one with each read.
func faults(log interface{ Read([]byte) (int, error) }, addresses map[string]string, found func(uuid, why string)) error {
	record := make([]byte, 8192) // the kernel's longest
	for {
		n, err := log.Read(record)
		if errors.Is(err, unix.EPIPE) {
			continue // records were overwritten before they were read
		}
		if err != nil {
			return fmt.Errorf("following the kernel's log: %w", err)
		}
		address, xid, ok := parseXid(string(record[:n]))
		if uuid := addresses[address]; ok && uuid != "" {
			found(uuid, fmt.Sprintf("the driver reported Xid %d (see the kernel's log on the node)", xid))
		}
	}
}

// addresses returns the UUIDs of all GPUs by their PCI addresses.
func (d Driver) addresses() (map[string]string, error) {
	library, err := d.NVML()
	if err != nil {
		return nil, err
	}
	starting.Lock()
	defer starting.Unlock()
	return addresses(nvml.New(nvml.WithLibraryPath(library)))
}

func addresses(library nvml.Interface) (map[string]string, error) {
	if ret := library.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("starting NVML: %v (try nvidia-smi on the node)", ret)
	}
	defer func() { _ = library.Shutdown() }()
	count, ret := library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("counting GPUs: %v (try nvidia-smi on the node)", ret)
	}
	out := map[string]string{}
	for i := range count {
		device, ret := library.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // Sick reports it
		}
		uuid, ret := device.GetUUID()
		info, failed := device.GetPciInfo()
		if ret == nvml.SUCCESS && failed == nvml.SUCCESS {
			out[pciAddress(uint64(info.Domain), uint64(info.Bus), uint64(info.Device))] = uuid
		}
	}
	return out, nil
}
