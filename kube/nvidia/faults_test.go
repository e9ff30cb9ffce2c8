package nvidia

import (
	"errors"
	"io"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// Only lines of the driver about a fault of the GPU itself count, whatever else a line says.
func TestParseXid(t *testing.T) {
	for record, want := range map[string]struct {
		address string
		xid     int
	}{
		"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n":    {"0000:3b:00", 79},
		"4,1,2,-,caller=T9;NVRM: Xid (PCI:0000:3B:00): 48, pid='<unknown>', name=<unknown>, DBE":  {"0000:3b:00", 48},
		"4,1,2,-;NVRM: Xid (PCI:0001:00:00.0): 95, uncontained":                                   {"0001:00:00", 95},
		"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=NVRM: Xid (PCI:0000:3b:00): 79, MMU": {"", 0},
		"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception":                              {"", 0},
		"4,1,2,-;audit: comm=NVRM: Xid (PCI:0000:3b:00): 79, ":                                    {"", 0},
		"12,1,2,-;x;NVRM: Xid (PCI:0000:3b:00): 79, ":                                             {"", 0},
		"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, ":                              {"", 0},
		"NVRM: Xid (PCI:0000:3b:00): 79, ":                                                        {"", 0},
		"12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a process":                           {"", 0},
		"": {"", 0},
	} {
		address, xid, ok := parseXid(record)
		expect.True(t, address == want.address && xid == want.xid && ok == (want.xid != 0), record, address, xid, ok)
	}
}

// kernel is a log whose reads return one record each, as the kernel's do.
type kernel []any

func (k *kernel) Read(to []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	next := (*k)[0]
	*k = (*k)[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(to, next.(string)), nil
}

// Each fault becomes one of its GPU. Records that were lost and GPUs that nobody knows do not end
// the search.
func TestFaults(t *testing.T) {
	library := dgxa100.New()
	var uuids []string
	for i := range 2 {
		device := library.Devices[i].(*server.Device)
		device.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0, Bus: uint32(0x3b + i)}, nvml.SUCCESS
		}
		uuids = append(uuids, device.UUID)
	}
	for _, other := range library.Devices[2:] {
		other.(*server.Device).GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_GPU_IS_LOST }
	}
	known, err := addresses(library)
	expect.True(t, err == nil && len(known) == 2, known, err)
	var got []string
	err = faults(&kernel{"4,1,2,-;NVRM: Xid (PCI:0000:3c:00): 79, gone", unix.EPIPE, "4,2,2,-;NVRM: Xid (PCI:0000:ff:00): 79, gone", "4,3,2,-;usb",
		"4,4,2,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE"}, known, func(uuid, _ string) { got = append(got, uuid) })
	expect.True(t, errors.Is(err, io.EOF) && len(got) == 2 && got[0] == uuids[1] && got[1] == uuids[0], got, err)
}
