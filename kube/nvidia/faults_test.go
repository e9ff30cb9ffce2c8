package nvidia

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/kube/slices"
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
		got, ok := parseXid(record)
		expect.True(t, got.address == want.address && got.number == want.xid && ok == (want.xid != 0), record, got, ok)
		expect.True(t, !ok || got.since == 2*time.Microsecond, record, got.since)
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

// Each fault is reported with its GPU, its time, and whether the GPU needs a reset. Records that were lost do not end
// the search.
func TestFaults(t *testing.T) {
	boot := time.Now().Add(-time.Hour)
	at := func(since time.Duration) time.Time { return boot.Add(since) }
	var got []slices.Fault
	err := faults(&kernel{"4,1,2000000,-;NVRM: Xid (PCI:0000:3c:00): 79, gone", unix.EPIPE, "4,2,2,-;usb", "4,3,3000000,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE"},
		at, func(f slices.Fault) { got = append(got, f) })
	expect.Must(t, errors.Is(err, io.EOF) && len(got) == 2, got, err)
	expect.True(t, strings.Contains(got[0].Why, "Xid 79") && strings.Contains(got[1].Why, "Xid 48"), got)
	got[0].Why, got[1].Why = "", ""
	expect.Equal(t, got[0], slices.Fault{PCI: "0000:3c:00.0", At: at(2 * time.Second), Reset: true})
	expect.Equal(t, got[1], slices.Fault{PCI: "0000:3b:00.0", At: at(3 * time.Second)})
}

// The records that are there are read before the plugin counts as caught up, with the times at which they were written.
// Those that come later happened when they come.
func TestFollow(t *testing.T) {
	log, write, err := os.Pipe()
	expect.OK(t, err)
	defer log.Close()
	const record = "4,1,0,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE" // of the boot
	_, err = write.WriteString(record)
	expect.OK(t, err)
	up := sinceBoot()
	var ages []time.Duration
	written := false
	err = follow(log, func(f slices.Fault) { ages = append(ages, time.Since(f.At)) }, func() {
		expect.True(t, len(ages) > 0, "it was caught up before it had read the log")
		if written {
			_ = write.Close() // the log ends
			return
		}
		written = true
		_, err := write.WriteString(record)
		expect.OK(t, err)
	})
	expect.Must(t, errors.Is(err, io.EOF) && len(ages) == 2, ages, err)
	expect.True(t, ages[0] > up-time.Second && ages[1] < ages[0], "of", up, ages)
}

// The addresses of GPUs are those that the kernel's log has; a GPU that does not say where it is has none.
func TestAddresses(t *testing.T) {
	library := dgxa100.New()
	for i, device := range library.Devices {
		device.(*server.Device).GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			if i > 0 {
				return nvml.PciInfo{}, nvml.ERROR_GPU_IS_LOST
			}
			return nvml.PciInfo{Domain: 0, Bus: 0x3b}, nvml.SUCCESS
		}
	}
	known, err := addresses(library)
	expect.True(t, err == nil && len(known) == 1 && known["0000:3b:00"] == library.Devices[0].(*server.Device).UUID, known, err)
}
