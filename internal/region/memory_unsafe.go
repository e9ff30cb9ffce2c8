package region

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// FileSize is the size of a region's file, in bytes.
const FileSize = regionSize

const (
	regionSize   = int64(unsafe.Sizeof(abi.Region{}))
	limitsSize   = int64(unsafe.Sizeof(abi.Limits{}))
	limitsOffset = int64(unsafe.Offsetof(abi.Region{}.Limits))
	slotsOffset  = int64(unsafe.Offsetof(abi.Region{}.Slots))
	tailOffset   = int64(unsafe.Offsetof(abi.Region{}.Tail))
	slotSize     = int64(unsafe.Sizeof(abi.Slot{}))

	highWaterOffset = int64(unsafe.Offsetof(abi.Header{}.HighWater)) // the header is first

	devicesOffset  = int64(unsafe.Offsetof(abi.Region{}.Devices))
	deviceSize     = int64(unsafe.Sizeof(abi.Device{}))
	computeOffset  = int64(unsafe.Offsetof(abi.Region{}.Compute))
	computeSize    = int64(unsafe.Sizeof(abi.Compute{}))
	partsOffset    = int64(unsafe.Offsetof(abi.Compute{}.Parts))
	statusOffset   = int64(unsafe.Offsetof(abi.Region{}.Status))
	refusalsOffset = int64(unsafe.Offsetof(abi.Region{}.Refusals))
	accountsOffset = int64(unsafe.Offsetof(abi.Region{}.Accounts))
	accountSize    = int64(unsafe.Sizeof(abi.Account{}))
	phaseOffset    = int64(unsafe.Offsetof(abi.Account{}.Phase))
	bodyOffset     = limitsOffset + limitsSize
)

// pageSize is the page size of the machine, of which abi.PageSize may be a part: many arm64
// machines have 64 KiB. Tests change it.
var pageSize = int64(os.Getpagesize())

// mapRegion maps the whole file. The limits stay read-only, so that a stray write cannot raise one,
// unless they share a page with data that must be written.
func mapRegion(fd int, writable bool) (*abi.Region, []byte, error) {
	mem, err := mapFile(fd, 0, regionSize, writable)
	if err != nil {
		return nil, nil, err
	}
	if writable && pageSize <= abi.PageSize {
		if err := unix.Mprotect(mem[limitsOffset:limitsOffset+limitsSize], unix.PROT_READ); err != nil {
			_ = unix.Munmap(mem)
			return nil, nil, fmt.Errorf("protecting limits: %w", err)
		}
	}
	return view[abi.Region](mem), mem, nil
}

// newRegion returns memory for a copy of a region. It is mapped, because Go would have to clear all
// of it, and a copy uses only a few pages.
func newRegion() (*abi.Region, []byte, error) {
	mem, err := unix.Mmap(-1, 0, int(regionSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", regionSize, err)
	}
	return view[abi.Region](mem), mem, nil
}

// mapLimits maps the limits at an offset in the file, beginning at a page boundary.
func mapLimits(fd int, offset int64, writable bool) (*abi.Limits, []byte, error) {
	before := offset % pageSize
	mem, err := mapFile(fd, offset-before, before+limitsSize, writable)
	if err != nil {
		return nil, nil, err
	}
	return view[abi.Limits](mem[before:]), mem, nil
}

func mapFile(fd int, offset, size int64, writable bool) ([]byte, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	// The kernel would report this too, for its own page size.
	if offset%pageSize != 0 {
		return nil, fmt.Errorf("mapping from byte %d, within a page: %w", offset, unix.EINVAL)
	}
	mem, err := unix.Mmap(fd, offset, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	// Pages are accessed at random: reading ahead would cost more than the rest of attaching.
	_ = unix.Madvise(mem, unix.MADV_RANDOM)
	return mem, nil
}

// within reports whether a faulting address is in mem.
func within(mem []byte, addr uintptr) bool {
	if len(mem) == 0 {
		return false
	}
	base := uintptr(unsafe.Pointer(&mem[0]))
	return addr >= base && addr < base+uintptr(len(mem))
}

// view returns mapped bytes as a structure. It panics if they are not aligned to a word: arm64
// faults on an unaligned atomic operation, and amd64 must not hide that.
func view[T any](mem []byte) *T {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if size := int(unsafe.Sizeof(*new(T))); len(mem) < size || uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("%d bytes at %p are no place for a structure of %d", len(mem), p, size))
	}
	return (*T)(p)
}

// bytesOf returns a structure as bytes, for a system call. There is no reverse function, because a
// byte slice may be unaligned.
func bytesOf[T abi.Header | abi.Limits](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// toldAt returns where in a region's file the word Told of a slot is.
func toldAt(slot int) int64 {
	var m *abi.Region
	return int64(unsafe.Offsetof(m.Slots) + uintptr(slot)*unsafe.Sizeof(m.Slots[0]) + unsafe.Offsetof(m.Slots[0].Told))
}

// regionBytes returns a copy of a region as bytes.
func regionBytes(m *abi.Region) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(m)), regionSize) }

// accountBytes returns accounts as bytes.
func accountBytes(a []abi.Account) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), len(a)*int(accountSize))
}

// phaseBytes returns an account's phase as bytes.
func phaseBytes(a *abi.Account) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&a.Phase)), 8) }

// accountOffset returns the offset of an account in the file.
func accountOffset(device, slot int) int64 {
	return accountsOffset + (int64(device)*abi.Slots+int64(slot))*accountSize
}

// refusalWords returns an entry as words, for its checksum.
func refusalWords(e *abi.Refusal) *[unsafe.Sizeof(abi.Refusal{}) / 8]uint64 {
	return (*[unsafe.Sizeof(abi.Refusal{}) / 8]uint64)(unsafe.Pointer(e))
}

// deathWords does the same for a death.
func deathWords(e *abi.Death) *[unsafe.Sizeof(abi.Death{}) / 8]uint64 {
	return (*[unsafe.Sizeof(abi.Death{}) / 8]uint64)(unsafe.Pointer(e))
}

// nameWords returns a slot's name as words, so that it can be read while it is written.
func nameWords(s *abi.Slot) *[abi.NameLen / 8]uint64 {
	return (*[abi.NameLen / 8]uint64)(unsafe.Pointer(&s.Name))
}

// This does not compile if a name is not aligned to a word.
const _ = -(unsafe.Offsetof(abi.Slot{}.Name) % 8)
