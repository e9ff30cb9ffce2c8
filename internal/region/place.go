package region

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"ration/internal/abi"
)

// Place is a set of devices, one bit each, by the machine's numbers. An empty place means that no choice
// was made.
type Place uint32

// PlaceAt returns the place of these devices.
func PlaceAt(devices ...int) (p Place) {
	for _, d := range devices {
		p |= 1 << d
	}
	return p
}

// Has reports whether a device is in the place.
func (p Place) Has(device int) bool { return p>>device&1 != 0 }

// Count returns the number of devices.
func (p Place) Count() int { return bits.OnesCount32(uint32(p)) }

// Devices returns the devices in order.
func (p Place) Devices() (out []int) {
	for d := range abi.Devices {
		if p.Has(d) {
			out = append(out, d)
		}
	}
	return out
}

// List formats the place for ParsePlace: 0,2.
func (p Place) List() string {
	var parts []string
	for _, d := range p.Devices() {
		parts = append(parts, strconv.Itoa(d))
	}
	return strings.Join(parts, ",")
}

// String formats the place for a sentence: GPU 1, or GPUs 0, 2.
func (p Place) String() string {
	if p.Count() == 1 {
		return "GPU " + p.List()
	}
	return "GPUs " + strings.ReplaceAll(p.List(), ",", ", ")
}

// ParsePlace parses the form of Place.List.
func ParsePlace(list string) (p Place, err error) {
	for part := range strings.SplitSeq(list, ",") {
		d, err := strconv.Atoi(part)
		if err != nil || d < 0 || d >= abi.Devices {
			return 0, fmt.Errorf("%q: not the number of a GPU (ration ps lists them)", part)
		}
		p |= PlaceAt(d)
	}
	return p, nil
}

// Restrict returns limits without the devices that are not in a place, which are hidden and have no memory.
func (l Limits) Restrict(at Place) Limits {
	for d := range abi.Devices {
		if !at.Has(d) {
			l.Memory[d], l.Compute[d], l.ComputeMax[d], l.Hidden[d] = abi.MakeLimit(0), 0, 0, max(l.Hidden[d], 1)
		}
	}
	return l
}

// Visible returns the devices that a job with these limits sees.
func (l Limits) Visible() (at Place) {
	for d := range abi.Devices {
		if l.Hidden[d] == 0 {
			at |= PlaceAt(d)
		}
	}
	return at
}

// MayUse reports whether the limits allow memory of a device.
func (l Limits) MayUse(device int) bool {
	return !l.Memory[device].Limited() || l.Memory[device].Bytes() > 0
}
