package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	kubeslices "ration/kube/slices"
)

// The driver writes its faults into the kernel's log:
//
//	NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
//
// NVML reports them too, but only to a process that keeps it open, and the driver cannot be replaced
// meanwhile. A record of the kernel itself has a number below 8 (facility 0), which no process can
// write. The names of programs come later in the line.

const kernelLog = "/dev/kmsg"

// xidLine matches a record of the kernel's log: its header, of which the third number is the time since
// the boot in microseconds, and the driver's line.
var xidLine = regexp.MustCompile(`^[0-7],[0-9]+,([0-9]+),[^;]*;NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.[0-9])?\): ([0-9]+),`)

// applicationXids are faults that a program causes, and that end no more than the program. They say
// nothing about the GPU.
var applicationXids = []int{13, 31, 43, 45, 68, 109}

// resetXids are faults after which the GPU does not work until it is reset, or the node rebooted.
var resetXids = []int{
	62,       // a controller of the GPU has halted
	64,       // a page or row of memory could not be retired
	79,       // fell off the bus
	95,       // an ECC error that others than its program may have seen
	119, 120, // the GSP does not answer, or failed
	140, // an ECC error that was not corrected
	154, // the driver asks for a reset or a reboot
}

// xid is a fault in the kernel's log.
type xid struct {
	address string // on the PCI bus
	number  int
	since   time.Duration // from the boot to the fault
}

// parseXid returns the fault that a record of the kernel's log is about. It returns false for a record
// about anything else, and for a fault of a program.
func parseXid(record string) (out xid, ok bool) {
	m := xidLine.FindStringSubmatch(record)
	if m == nil {
		return xid{}, false
	}
	var pci [3]uint64
	for i := range pci {
		n, err := strconv.ParseUint(m[2+i], 16, 32)
		if err != nil {
			return xid{}, false
		}
		pci[i] = n
	}
	number, err := strconv.Atoi(m[5])
	micros, err2 := strconv.ParseInt(m[1], 10, 64)
	if err != nil || err2 != nil || slices.Contains(applicationXids, number) {
		return xid{}, false
	}
	return xid{pciAddress(pci[0], pci[1], pci[2]), number, time.Duration(micros) * time.Microsecond}, true
}

func pciAddress(domain, bus, device uint64) string {
	return fmt.Sprintf("%04x:%02x:%02x", domain, bus, device)
}

// Faults calls found for each fault of a GPU in the kernel's log, and for those that the driver
// reports from now on, until the context ends. It calls caughtUp when it has read the log. The log
// begins at the boot, or where an administrator has cleared it (dmesg --clear).
func (d Driver) Faults(ctx context.Context, found func(kubeslices.Fault), caughtUp func()) error {
	log, err := os.Open(kernelLog)
	if err != nil {
		return fmt.Errorf("following the kernel's log: %w (is the plugin's container privileged?)", err)
	}
	defer log.Close()
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	if _, err := log.Seek(0, unix.SEEK_DATA); err != nil {
		return fmt.Errorf("following the kernel's log: %w", err)
	}
	return follow(log, found, caughtUp)
}

// follow reads a log to its end, and what is added to it.
func follow(log *os.File, found func(kubeslices.Fault), caughtUp func()) error {
	conn, err := log.SyscallConn()
	if err != nil {
		return fmt.Errorf("following the kernel's log: %w", err)
	}
	live := false // what is read now has just been written
	at := func(since time.Duration) time.Time {
		if live {
			return time.Now()
		}
		return time.Now().Add(since - sinceBoot())
	}
	return faults(logReader{conn, func() {
		live = true
		caughtUp()
	}}, at, found)
}

// sinceBoot returns the time that the kernel's log has now. The two clocks drift apart by some seconds in a week.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// logReader reads the kernel's log, one record with each read. It calls wait before it waits for one.
type logReader struct {
	conn syscall.RawConn
	wait func()
}

func (r logReader) Read(to []byte) (n int, err error) {
	closed := r.conn.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), to)
		if err == unix.EAGAIN {
			r.wait()
			return false
		}
		return true
	})
	switch {
	case closed != nil:
		return 0, closed
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// faults reads records of the kernel's log, one with each read. at returns when something happened
// that long after the boot.
func faults(log io.Reader, at func(time.Duration) time.Time, found func(kubeslices.Fault)) error {
	record := make([]byte, 8192) // the kernel's longest
	for {
		n, err := log.Read(record)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // records were overwritten before they were read
		}
		if err != nil {
			return fmt.Errorf("following the kernel's log: %w", err)
		}
		if x, ok := parseXid(string(record[:n])); ok {
			found(kubeslices.Fault{PCI: busID(x.address), At: at(x.since), Reset: slices.Contains(resetXids, x.number),
				Why: fmt.Sprintf("the driver reported Xid %d (see the kernel's log on the node)", x.number)})
		}
	}
}

// busID returns the bus ID of the GPU at an address: its first function.
func busID(address string) string { return address + ".0" }

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
