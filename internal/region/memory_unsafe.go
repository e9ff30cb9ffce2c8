package region

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

const (
	regionSize   = int64(unsafe.Sizeof(abi.Region{}))
	headerSize   = int64(unsafe.Sizeof(abi.Header{}))
	limitsSize   = int64(unsafe.Sizeof(abi.Limits{}))
	limitsOffset = int64(unsafe.Offsetof(abi.Region{}.Limits))
	slotsOffset  = int64(unsafe.Offsetof(abi.Region{}.Slots))
	tailOffset   = int64(unsafe.Offsetof(abi.Region{}.Tail))
	slotSize     = int64(unsafe.Sizeof(abi.Slot{}))
	bodyOffset   = limitsOffset + limitsSize
)

// mapRegion maps the whole file. The limits are mapped with it but stay
// read-only, so that a stray write cannot raise one.
func mapRegion(fd int, writable bool) (*abi.Region, []byte, error) {
	mem, err := mapFile(fd, 0, regionSize, writable)
	if err != nil {
		return nil, nil, err
	}
	if writable {
		if err := unix.Mprotect(mem[limitsOffset:limitsOffset+limitsSize], unix.PROT_READ); err != nil {
			_ = unix.Munmap(mem)
			return nil, nil, fmt.Errorf("protecting limits: %w", err)
		}
	}
	return (*abi.Region)(unsafe.Pointer(&mem[0])), mem, nil
}

// mapLimits maps one page of limits, at offset in the file.
func mapLimits(fd int, offset int64, writable bool) (*abi.Limits, []byte, error) {
	mem, err := mapFile(fd, offset, limitsSize, writable)
	if err != nil {
		return nil, nil, err
	}
	return (*abi.Limits)(unsafe.Pointer(&mem[0])), mem, nil
}

func mapFile(fd int, offset, size int64, writable bool) ([]byte, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, offset, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	// Pages are touched here and there: reading around each would cost more than
	// the rest of attaching.
	_ = unix.Madvise(mem, unix.MADV_RANDOM)
	return mem, nil
}

// within says whether a faulting address lies in mem.
func within(mem []byte, addr uintptr) bool {
	if len(mem) == 0 {
		return false
	}
	base := uintptr(unsafe.Pointer(&mem[0]))
	return addr >= base && addr < base+uintptr(len(mem))
}

// headerOf and limitsOf read a structure from bytes that were read, not mapped.
func headerOf(b *[headerSize]byte) *abi.Header { return (*abi.Header)(unsafe.Pointer(b)) }
func limitsOf(b *[limitsSize]byte) *abi.Limits { return (*abi.Limits)(unsafe.Pointer(b)) }

// refusalWords is an entry as the words its checksum runs over.
func refusalWords(e *abi.Refusal) *[unsafe.Sizeof(abi.Refusal{}) / 8]uint64 {
	return (*[unsafe.Sizeof(abi.Refusal{}) / 8]uint64)(unsafe.Pointer(e))
}

// nameWords is a slot's name as words, so that it can be read while written.
func nameWords(s *abi.Slot) *[abi.NameLen / 8]uint64 {
	return (*[abi.NameLen / 8]uint64)(unsafe.Pointer(&s.Name))
}
